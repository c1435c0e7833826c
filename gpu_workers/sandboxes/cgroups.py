"""Memory and process limits of a sandbox by cgroup v2, where the host has delegated a folder to the worker."""

import contextlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

PREFIX = "ratchet-sandbox-"
CONTROLLERS = frozenset({"memory", "pids"})


@dataclass(frozen=True)
class Delegated:
    """A cgroup in whose children memory and processes can be limited by this worker."""

    folder: Path

    def create(self, memory_bytes: int, num_processes: int) -> "SandboxGroup":
        """A child with limits of its own. Raises OSError."""
        folder = self.folder / f"{PREFIX}{uuid.uuid4().hex}"
        folder.mkdir()
        try:
            _write(folder / "memory.max", memory_bytes)
            if (folder / "memory.swap.max").exists():
                _write(folder / "memory.swap.max", 0)
            _write(folder / "pids.max", num_processes)
        except OSError:
            folder.rmdir()
            raise
        return SandboxGroup(folder)


@dataclass(frozen=True)
class SandboxGroup:
    """The cgroup of one sandbox."""

    folder: Path

    def add(self, pid: int) -> None:
        """Move a process, before it has started any other. Raises OSError."""
        _write(self.folder / "cgroup.procs", pid)

    def num_killed(self) -> int:
        """Processes that the kernel has killed for want of memory."""
        return _counter(self.folder / "memory.events", "oom_kill")

    def num_refused(self) -> int:
        """Processes that the kernel has refused to start."""
        return _counter(self.folder / "pids.events", "max")

    def remove(self) -> None:
        """Kill what is left and remove the folder; one that the kernel is still emptying stays behind, empty."""
        with contextlib.suppress(OSError):
            _write(self.folder / "cgroup.kill", 1)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def find_delegated(setting: Path | None = None) -> Delegated | None:
    """The folder named by the settings, else this process's own cgroup, where its controllers can be handed down."""
    for folder in [setting] if setting is not None else [_own_group()]:
        if folder is not None and _can_delegate(folder):
            return Delegated(folder)
    return None


def _own_group() -> Path | None:
    """This process's cgroup v2 folder. The root is nobody's to use."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    mounted = [line.split(" ")[1] for line in mounts if line.split(" ")[2] == "cgroup2"]
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    if not mounted or not paths or paths[0] == "/":
        return None
    return Path(mounted[0]) / paths[0].lstrip("/")


def _can_delegate(folder: Path) -> bool:
    """Whether children get memory and pids; switched on where that is still to be done."""
    try:
        if not os.access(folder, os.W_OK) or not _words(folder / "cgroup.controllers") >= CONTROLLERS:
            return False
        if not _words(folder / "cgroup.subtree_control") >= CONTROLLERS:
            # Refused while processes live in the folder itself: the host's administrator has to delegate a child.
            (folder / "cgroup.subtree_control").write_text("+memory +pids")
    except OSError:
        return False
    return True


def _words(path: Path) -> set[str]:
    return set(path.read_text().split())


def _write(path: Path, value: int) -> None:
    fd = os.open(path, os.O_WRONLY)  # never created: a missing file is a controller that is not there
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _counter(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0
