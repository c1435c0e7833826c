"""The users that probes run as: root, and an ordinary user of no account, each with a driver process of its own."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ORDINARY_UID = 47_111


class Host:
    """One user's driver."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name = name
        self.process = process
        self.facts: dict[str, Any] = {}

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"error": "the driver ended"}')
        assert "error" not in answer, answer["error"]
        return answer


def start(name: str) -> Host:
    """A driver as that user. Skips where this session cannot become it."""
    prefix: list[str] = []
    packages = os.pathsep.join([sysconfig.get_path("purelib"), str(ROOT)])
    python = sys.executable
    if name == "root" and os.geteuid() != 0:
        pytest.skip("only root can run as root")
    if name == "ordinary user" and os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("becoming another user needs setpriv")
        uid = str(ORDINARY_UID)
        prefix = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env"]
        python = readable_python(prefix, packages)
    process = subprocess.Popen(
        [*prefix, python, "-m", "tests.escape.driver"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Host(name, process)


def readable_python(prefix: list[str], packages: str) -> str:
    """An interpreter that the other user may run, with this checkout and its packages in reach."""
    check = "import sys, msgspec, gpu_workers.sandboxes.bubblewrap; assert sys.version_info[:2] == (3, 11)"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    for python in (sys.executable, "/usr/bin/python3.11", "/usr/bin/python3"):
        if not subprocess.run([*prefix, python, "-c", check], env=variables, capture_output=True).returncode:
            return python
    pytest.skip("no Python 3.11 and checkout that another user may read")


@pytest.fixture(scope="session", params=["root", "ordinary user"])
def host(request: pytest.FixtureRequest):
    made = start(request.param)
    first = made.ask("probe")
    if "unavailable" in first:
        made.process.kill()
        made.process.wait()
        pytest.skip(first["unavailable"])
    made.facts = first["facts"]
    yield made
    assert made.process.stdin is not None and made.process.stdout is not None
    made.process.stdin.close()
    assert made.process.wait(20) == 0
    made.process.stdout.close()
