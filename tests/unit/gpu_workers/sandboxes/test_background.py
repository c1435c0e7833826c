"""Starts in the background: bounded, not waited for by whoever needs one now, and cancelled to the end."""

import asyncio

import pytest

from gpu_workers.sandboxes import background
from gpu_workers.sandboxes.background import BackgroundStart


class Starts:
    """Starts that wait until they may end; what became of each."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = self.most = self.ended = self.interrupted = 0

    async def one(self) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # as a sandbox that kills what it has started
            self.interrupted += 1
            raise
        finally:
            self.running -= 1
            self.ended += 1
        return "made"


async def test_few_at_a_time(monkeypatch):
    monkeypatch.setattr(background, "MAX_STARTS", 3)
    starts = Starts()
    made = [BackgroundStart(starts.one) for _ in range(10)]
    await asyncio.sleep(0.02)
    assert starts.running == 3
    starts.go.set()
    assert [await start.take() for start in made] == ["made"] * 10
    assert starts.ended == 10 and starts.most <= 4  # those taken before their turn are not counted


async def test_whoever_waits_goes_first(monkeypatch):
    monkeypatch.setattr(background, "MAX_STARTS", 1)
    slow, quick = Starts(), Starts()
    quick.go.set()
    first, behind = BackgroundStart(slow.one), BackgroundStart(quick.one)
    await asyncio.sleep(0.01)
    assert (slow.running, quick.ended) == (1, 0), "the second has to wait its turn"
    assert await asyncio.wait_for(behind.take(), 30) == "made"
    await first.cancel()
    assert slow.interrupted == 1


async def test_a_cancelled_one_has_cleaned_up_and_gives_its_turn_back(monkeypatch):
    monkeypatch.setattr(background, "MAX_STARTS", 1)
    starts = Starts()
    running, waiting, last = (BackgroundStart(starts.one) for _ in range(3))
    await asyncio.sleep(0.01)
    await waiting.cancel()
    await running.cancel()
    await asyncio.sleep(0)
    assert (starts.interrupted, starts.running) == (1, 1), "the one that waited has never begun, the last has"
    starts.go.set()
    assert await last.take() == "made" and starts.ended == 2


async def test_whoever_waits_and_is_cancelled_takes_the_start_along():
    starts = Starts()
    start = BackgroundStart(starts.one)
    await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(start.take(), 0.05)
    assert starts.interrupted == 1


async def test_a_failure_is_told_to_whoever_takes_it_and_to_nobody_else():
    async def fail() -> str:
        raise ValueError("no")

    taken, dropped = BackgroundStart(fail), BackgroundStart(fail)
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError, match="no"):
        await taken.take()
    await dropped.cancel()
