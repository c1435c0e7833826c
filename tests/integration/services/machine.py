"""A supervisor under test: started as a user would start it, in a home of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from ratchet.env import ROOT
from ratchet.services.home import Home
from ratchet.services.marks import marked_processes, server_processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@dataclass
class Machine:
    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    python: str = sys.executable
    process: subprocess.Popen[str] | None = None

    @property
    def home(self) -> Home:
        return Home(self.root)

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return (
            kept
            | {
                "RATCHET_HOME": str(self.root),
                "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
                "RATCHET_PORT": str(free_port()),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            | self.variables
        )

    def command(self, *arguments: str) -> list[str]:
        return [*self.prefix, self.python, "-m", "ratchet.services", *arguments]

    def run(self, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environment(), cwd=ROOT, capture_output=True, text=True, timeout=seconds
        )

    def up(self, *arguments: str) -> None:
        """Start and wait for the line that says it is ready."""
        self.process = subprocess.Popen(
            self.command("up", *arguments),
            env=self.environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if "Ready" in line:
                return
        raise AssertionError("the supervisor ended:\n" + "".join(seen))

    def signal(self, number: int) -> int:
        """Send a signal to the supervisor and wait for its end."""
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        status = self.process.wait(60)
        self.process.stdout.close()
        self.process = None
        return status

    def living(self) -> list[str]:
        """Names of the living processes of this home."""
        found = [*server_processes(self.home), *marked_processes(f"{self.root}:")]
        return sorted({process.name for process in found})

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(host=str(self.home.sockets), user="postgres", dbname="ratchet", autocommit=True)

    def close(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGTERM)
