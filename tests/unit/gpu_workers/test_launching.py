import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_workers import launching


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition, seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(0.02)


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_exit_code_and_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert launching.run_process(python("print('hello'); raise SystemExit(3)"), log) == 3
    assert log.read_text() == "hello\n"


def test_an_ending_says_how_and_shows_the_last_output() -> None:
    killed = launching.Ending(-signal.SIGKILL, "loading")
    assert not killed.reported
    assert "SIGKILL" in killed.describe() and "loading" in killed.describe()
    assert launching.Ending(0, "").reported
    assert launching.Ending(launching.EXIT_REPORTED, "").reported
    assert not launching.Ending(2, "usage").reported


def test_stop_all_ends_what_runs(tmp_path: Path) -> None:
    codes: list[int] = []
    log = tmp_path / "log"
    command = python("import time; print('up', flush=True); time.sleep(60)")
    thread = threading.Thread(target=lambda: codes.append(launching.run_process(command, log)))
    thread.start()
    wait_until(lambda: log.exists() and log.read_text() == "up\n")
    launching.stop_all()
    thread.join(10)
    assert codes == [-signal.SIGTERM]


def test_a_killed_worker_leaves_no_process(tmp_path: Path) -> None:
    """The worker is killed the hard way; its trainer must go with it."""
    log = tmp_path / "log"
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    worker_source = (
        "import sys; from pathlib import Path; from gpu_workers.launching import run_process; "
        f"run_process([sys.executable, '-c', {child!r}], Path({str(log)!r}))"
    )
    root = Path(launching.__file__).resolve().parents[1]
    worker = subprocess.Popen(python(worker_source), cwd=root)
    try:
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
        pid = int(log.read_text())
        assert alive(pid)
    finally:
        worker.kill()
        worker.wait()
    wait_until(lambda: not alive(pid))


def test_several_ranks_start_with_torchrun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert launching.trainer_command(tmp_path)[1:3] == ["-m", "gpu_workers.trainer"]
    monkeypatch.setenv("RATCHET_TRAINER_RANKS", "4")
    command = launching.trainer_command(tmp_path)
    assert "torch.distributed.run" in command and "--nproc-per-node=4" in command
    monkeypatch.setenv("RATCHET_TRAINER_RANKS", "many")
    with pytest.raises(ValueError, match="RATCHET_TRAINER_RANKS"):
        launching.trainer_command(tmp_path)
