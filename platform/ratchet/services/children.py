"""Child processes that die with their parent, and the ending of process groups."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(death_signal: int, parent: int) -> None:
    """Ask the kernel for `death_signal` when the parent dies. Runs between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:  # the parent was gone before we asked
        os._exit(1)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    death_signal: int = signal.SIGKILL,
    before_exec: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, output appended to `log`. Call from the main thread:
    the kernel counts the end of the starting thread as the death of the parent."""
    parent = os.getpid()

    def prepare() -> None:
        if before_exec is not None:
            before_exec()
        die_with_parent(death_signal, parent)  # last: a change of credentials clears it

    with log.open("ab") as output:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,
        )


def stop(process: subprocess.Popen[bytes], *, gentle: int = signal.SIGTERM, timeout_seconds: float = 10.0) -> int:
    """End a child: the gentle signal, then SIGKILL for its whole process group. Returns the exit status."""
    if process.poll() is None:
        process.send_signal(gentle)
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
    return process.wait()


def kill_group(group: int) -> None:
    """SIGKILL for every process of a group; nothing when it is gone."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_until(
    ready: Callable[[], bool], *, alive: Callable[[], bool], timeout_seconds: float, pause_seconds: float = 0.02
) -> bool:
    """Poll `ready` until it holds, `alive` fails or the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if ready():
            return True
        if not alive():
            return False
        time.sleep(pause_seconds)
    return False


def log_tail(log: Path, num_lines: int = 8) -> str:
    """The last lines of a log, for error messages."""
    if not log.exists():
        return "(no output)"
    lines = log.read_text(errors="replace").splitlines()[-num_lines:]
    return "\n".join(lines) or "(no output)"
