"""Honest work passes, and no detector accuses it."""

import pytest

from tests.hacks.beside import BESIDE_CONTROLS
from tests.hacks.claimed import CLAIMED_TWINS
from tests.hacks.controls import CONTROLS
from tests.hacks.handed import HANDED_TWINS
from tests.hacks.reported import TWINS
from tests.hacks.scripted import SCRIPTED_CONTROLS
from tests.hacks.watched import WATCHED_TWINS
from tests.hacks.world import Play, World, problem


@pytest.mark.parametrize(
    "play",
    [*CONTROLS, *TWINS, *SCRIPTED_CONTROLS, *WATCHED_TWINS, *BESIDE_CONTROLS, *CLAIMED_TWINS, *HANDED_TWINS],
    ids=str,
)
async def test_honest_work_passes_unaccused(world: World, play: Play) -> None:
    record = await world.play(play.task, play.turns)
    assert problem(play, record) == ""
