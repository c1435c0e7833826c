"""Honest work passes, and no detector speaks of it."""

import pytest

from tests.hacks.controls import CONTROLS
from tests.hacks.reported import TWINS
from tests.hacks.scripted import SCRIPTED_CONTROLS
from tests.hacks.world import Play, World, problem


@pytest.mark.parametrize("play", [*CONTROLS, *TWINS, *SCRIPTED_CONTROLS], ids=str)
async def test_honest_work_passes_unflagged(world: World, play: Play) -> None:
    record = await world.play(play.task, play.turns)
    assert problem(play, record) == ""
