"""A control plane of its own for a benchmark: PostgreSQL that syncs, Valkey, and the processes asked for."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]

import psutil  # noqa: E402

from ratchet.services.marks import marked_processes  # noqa: E402
from tests.integration.services.machine import Machine, free_port  # noqa: E402


@contextmanager
def plane(*processes: str) -> Iterator[Machine]:
    """Started with `manage.py up`, as a person would; Django of this process is set up on it. Removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="ratchet-bench-"))
    machine = Machine(home, {"RATCHET_PORT": str(free_port()), "LOG_LEVEL": "WARNING"})
    try:
        machine.up("--only", ",".join(("postgres", "valkey", *processes)))
        os.environ |= {name: value for name, value in machine.environment().items() if name not in ("PATH", "HOME")}
        import django

        os.environ["DJANGO_SETTINGS_MODULE"] = "ratchet.settings.development"
        django.setup()
        yield machine
    finally:
        machine.close()
        shutil.rmtree(home, ignore_errors=True)


def cpu_seconds(machine: Machine, name: str) -> float:
    """Of one process of the machine so far."""
    (found,) = [process for process in marked_processes(f"{machine.root}:") if process.name == name]
    times = psutil.Process(found.pid).cpu_times()
    return float(times.user + times.system)


def conditions() -> dict[str, object]:
    """What a number depends on."""
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
