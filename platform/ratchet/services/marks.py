"""Finds every process of a supervisor, grandchildren included.

Ours are known by a mark in their environment. PostgreSQL and Valkey write their titles over it: they are known by
their working directory, the data folder.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.services.home import Home

SUPERVISOR = "RATCHET_SUPERVISOR"  # <home>:<id of the supervisor>
PROCESS = "RATCHET_PROCESS"  # name in the process table


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    pid: int
    supervisor: str
    name: str


def supervisor_mark(home: Path, identity: str) -> str:
    """Value of RATCHET_SUPERVISOR."""
    return f"{home}:{identity}"


def marked_processes(prefix: str) -> Iterator[MarkedProcess]:
    """Living processes of this user whose mark starts with `prefix`, ourselves excepted."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        marks = _marks(entry)
        if marks.get(SUPERVISOR, "").startswith(prefix):
            yield MarkedProcess(int(entry.name), marks[SUPERVISOR], marks.get(PROCESS, ""))


def server_processes(home: Home) -> Iterator[MarkedProcess]:
    """Living processes whose working directory is a server's data folder."""
    folders = {str(home.postgres): "postgres", str(home.valkey): "valkey"}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            folder = str((entry / "cwd").readlink())
        except OSError:  # gone, a zombie, or not ours
            continue
        if folder in folders:
            yield MarkedProcess(int(entry.name), "", folders[folder])


def end_marked(prefix: str, *, name: str = "", spare: frozenset[str] = frozenset()) -> None:
    """SIGKILL until no process with the mark (and `name`, where given) is left; those in `spare` are left alone."""
    end_all(lambda: (p for p in marked_processes(prefix) if (not name or p.name == name) and p.name not in spare))


def end_all(find: Callable[[], Iterable[MarkedProcess]], *, timeout_seconds: float = 5.0) -> None:
    """SIGKILL what `find` yields until it yields nothing: a process may have forked meanwhile."""
    deadline = time.monotonic() + timeout_seconds
    while (found := list(find())) and time.monotonic() < deadline:
        for process in found:
            _kill(process.pid)
        time.sleep(0.05)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _marks(entry: Path) -> dict[str, str]:
    try:
        block = (entry / "environ").read_bytes()  # empty for zombies
    except OSError:  # gone, or not ours
        return {}
    marks = {}
    for item in block.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name in (SUPERVISOR.encode(), PROCESS.encode()):
            marks[name.decode()] = os.fsdecode(value)
    return marks
