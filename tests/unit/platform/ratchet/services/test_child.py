"""Restarts: the delay doubles, ends at half a minute, and is forgotten after a steady time."""

import subprocess

import pytest

from ratchet.services import child as module
from ratchet.services.child import Child


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def ended_process() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["false"])
    process.wait()
    return process


def test_delay_doubles_up_to_its_limit(clock: list[float]) -> None:
    child = Child("engine", ended_process)
    delays = []
    for _ in range(9):
        child.start()
        assert child.notice_end() is not None
        delays.append(child.restart_at - clock[0])
        assert not child.is_due()
        clock[0] = child.restart_at
        assert child.is_due()
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_steady_process_starts_its_count_anew(clock: list[float]) -> None:
    child = Child("engine", ended_process, num_failures=6)
    child.start()
    clock[0] += 31
    assert child.notice_end() == "ended with status 1; starting it again in 0.5 s."
    assert child.num_failures == 1


def test_end_is_noticed_once_and_a_living_process_never() -> None:
    child = Child("engine", lambda: subprocess.Popen(["sleep", "60"]))
    child.start()
    assert child.process is not None
    assert child.notice_end() is None and not child.is_due()
    child.process.kill()
    child.process.wait()
    assert "status -9" in str(child.notice_end())
    assert child.notice_end() is None
