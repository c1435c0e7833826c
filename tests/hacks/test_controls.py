"""Honest work passes, and no detector speaks of it."""

import pytest

from gpu_workers.contracts.enums import Verdict
from tests.hacks.controls import CONTROLS
from tests.hacks.world import Play, World


@pytest.mark.parametrize("play", CONTROLS, ids=str)
async def test_honest_work_passes_unflagged(world: World, play: Play) -> None:
    record = await world.play(play.task, play.turns)
    assert record.verdict is Verdict.PASS, f"{record.reason_code} {record.message} {record.flags}"
    assert record.reward == 1.0 and record.success
    assert record.flags == []
