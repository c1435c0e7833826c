"""The command line that runs a host of a third-party environment: bubblewrap, no network, no data of the machine.

A host holds foreign code and serves the policy's actions, so it gets what a sandbox gets, with two differences: it sees
its own virtual environment, and its limits are those of a framework, not of one tool call.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.channel import sealed
from gpu_workers.sandboxes.seccomp import filter_program

HOSTS = Path(__file__).parent / "hosts"
INSIDE = "/host"  # where the programs of hosts/ are
PROGRAMS = {"verifiers": "verifiers_host.py", "openenv": "openenv_host.py"}
PACKAGES = "packages"  # below the folder of environments: packages/<kind>/ is on the host's import path
MEMORY_BYTES = 8 * 2**30  # address space of one process: frameworks map far more than they use
PROCESSES = 256
FILE_BYTES = 64 * 2**20
TMP_BYTES = 256 * 2**20
HOME = "/tmp/home"  # noqa: S108  of the host's own namespace


@dataclass(frozen=True)
class HostCommand:
    """How to start a host: arguments, and descriptors that it inherits. The caller closes them."""

    argv: list[str]
    pass_fds: tuple[int, ...]
    isolation: str


def missing(environments: Path, kind: str) -> str:
    """Why hosts of a kind cannot run on this machine; empty when they can."""
    if kind not in PROGRAMS:
        return f"{kind!r} is no kind of environment; known are {', '.join(PROGRAMS)}"
    python = environments / kind / "bin" / "python"
    if not os.access(python, os.X_OK):
        return f"{python} does not exist: run `make environments` on every worker, or set RATCHET_ENVIRONMENTS_DIR"
    return ""


def host_command(environments: Path, kind: str) -> HostCommand:
    """The command of one host. Raises WorkerError where this machine has not got what it takes."""
    if problem := missing(environments, kind):
        raise WorkerError(Boundary.INFRASTRUCTURE, f"ENVIRONMENT_UNAVAILABLE: {problem}", retryable=False)
    seccomp, bwrap = sealed(filter_program(), "seccomp"), os.open(command.find_bwrap(), os.O_RDONLY)
    # By descriptor: this project may lie in a folder that the sandbox's user cannot enter.
    files = {file.name: sealed(file.read_bytes(), file.name) for file in sorted(HOSTS.glob("*.py"))}
    argv = _argv(environments, kind, seccomp, bwrap, files)
    return HostCommand(argv, (seccomp, bwrap, *files.values()), _isolation())


def _argv(environments: Path, kind: str, seccomp: int, bwrap: int, files: Mapping[str, int]) -> list[str]:
    root = environments / kind
    packages = environments / PACKAGES / kind
    line = [f"/proc/self/fd/{bwrap}", *(flag for flag in command.NAMESPACES if flag != "--as-pid-1"), "--clearenv"]
    variables = {
        "PATH": f"{root}/bin:{command.PATH}", "HOME": HOME, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0", "PYTHONPATH": f"{INSIDE}:{packages}", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    for name, value in variables.items():
        line += ["--setenv", name, value]
    line += ["--hostname", "environment", "--uid", str(command.INNER_UID), "--gid", str(command.INNER_UID)]
    line += ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "bin", "sbin"):
        if Path("/usr", name).exists():
            line += ["--symlink", f"usr/{name}", f"/{name}"]
    line += [
        "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache",
        "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
        "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys",
        "--dev", "/dev", "--size", str(command.SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev",  # noqa: S108
        "--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--dir", HOME,  # noqa: S108
        # After /tmp: the folder of environments may lie there.
        "--ro-bind", str(root), str(root), "--ro-bind-try", str(packages), str(packages),
        *(word for name, fd in files.items() for word in ("--ro-bind-data", str(fd), f"{INSIDE}/{name}")),
        "--chdir", HOME, "--remount-ro", "/", "--cap-drop", "ALL", "--seccomp", str(seccomp), "--",
    ]  # fmt: skip
    return [*line, *_limits(), f"{root}/bin/python", "-u", f"{INSIDE}/{PROGRAMS[kind]}"]


def _limits() -> Sequence[str]:
    return [
        "prlimit", "--core=0", "--nofile=1024", f"--nproc={PROCESSES}", f"--as={MEMORY_BYTES}", f"--fsize={FILE_BYTES}",
    ]  # fmt: skip


def _isolation() -> str:
    return (
        f"bubblewrap host: user, pid, net, ipc, uts, cgroup namespaces; seccomp; no capabilities; network none; "
        f"{PROCESSES} processes by RLIMIT_NPROC; {MEMORY_BYTES} bytes a process by RLIMIT_AS; /tmp {TMP_BYTES} bytes"
    )
