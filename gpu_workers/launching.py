"""Starts the trainer as a process of its own and makes sure that it ends with its worker."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_workers.contracts.messages import TrainJob

TAIL_BYTES = 4000  # of the log, told when the process dies
EXIT_REPORTED = 1  # the trainer has told the control plane itself

logger = logging.getLogger(__name__)
_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Ending:
    """How the process ended; `reported`: it has said so itself."""

    exit_code: int
    tail: str

    @property
    def reported(self) -> bool:
        return self.exit_code in (0, EXIT_REPORTED)

    def describe(self) -> str:
        """In words, with the last lines of its output."""
        how = f"exit code {self.exit_code}"
        if self.exit_code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-self.exit_code).name
        return f"the trainer process ended with {how}" + (f"; last output: {self.tail}" if self.tail else "")


def trainer_command(job_file: Path) -> list[str]:
    """One process; torchrun when RATCHET_TRAINER_RANKS asks for several."""
    text = os.environ.get("RATCHET_TRAINER_RANKS") or "1"
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"RATCHET_TRAINER_RANKS: {text!r} is not a positive number")
    if int(text) == 1:
        return [sys.executable, "-m", "gpu_workers.trainer", str(job_file)]
    ranks = ["--standalone", f"--nproc-per-node={text}"]
    return [sys.executable, "-m", "torch.distributed.run", *ranks, "-m", "gpu_workers.trainer", str(job_file)]


def run_trainer(job: TrainJob, home: Path) -> Ending:
    """Run one attempt to its end. Its output goes to home/logs/trainer-<run>.<attempt>.log."""
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"trainer-{job.run_id}.{job.attempt}.log"
    with tempfile.TemporaryDirectory(prefix="ratchet-trainer-") as folder:
        job_file = Path(folder) / "job.json"
        job_file.write_bytes(msgspec.json.encode(job))
        exit_code = run_process(trainer_command(job_file), log)
    return Ending(exit_code, _tail(log) if exit_code else "")


def run_process(command: Sequence[str], log: Path) -> int:
    """Run a command in its own session until it ends; returns its exit code, negative for a signal.

    The child asks the kernel to end it with this thread's process (the launcher below), so a killed worker leaves none.
    """
    launcher = [sys.executable, "-m", "gpu_workers.launching", str(os.getpid()), *command]
    with log.open("ab") as output:
        process = subprocess.Popen(
            launcher, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    with _lock:
        _running.add(process)
    try:
        return process.wait()
    finally:
        with _lock:
            _running.discard(process)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # ranks of a launcher that died


def stop_all() -> None:
    """End what this worker has started; checkpoints are whole or absent, so any moment is safe."""
    with _lock:
        processes = list(_running)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def _tail(log: Path) -> str:
    with log.open("rb") as handle:
        handle.seek(0, os.SEEK_END)
        handle.seek(max(0, handle.tell() - TAIL_BYTES))
        return handle.read().decode(errors="replace").strip()[-TAIL_BYTES:]


def _become(parent: int, command: Sequence[str]) -> None:
    """In the child: die with the parent, then become the command. The setting survives exec."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before the request
            sys.exit(128 + signal.SIGTERM)
    os.execv(command[0], list(command))  # noqa: S606 (no shell, an argument list of our own)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
