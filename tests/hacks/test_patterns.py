"""Every pattern as a real program through the real path: the right verdict, and the flags where it must be seen."""

import pytest

from tests.hacks.beside import BESIDE
from tests.hacks.claimed import CLAIMED
from tests.hacks.handed import HANDED
from tests.hacks.later import LATER
from tests.hacks.patterns import PATTERNS
from tests.hacks.reported import REPORTED
from tests.hacks.scripted import SCRIPTED
from tests.hacks.variants import VARIANTS
from tests.hacks.watched import WATCHED
from tests.hacks.world import Play, World, problem

EPISODES = set(range(1, 18))  # pattern 18 is about verdicts that do not repeat: test_flaky.py


def test_no_pattern_is_left_out() -> None:
    for plays in (PATTERNS, VARIANTS, LATER):
        assert {play.pattern for play in plays} == EPISODES


@pytest.mark.parametrize(
    "play", [*PATTERNS, *VARIANTS, *LATER, *REPORTED, *SCRIPTED, *WATCHED, *BESIDE, *CLAIMED, *HANDED], ids=str
)
async def test_a_hack_gets_its_verdict(world: World, play: Play) -> None:
    record = await world.play(play.task, play.turns)
    assert problem(play, record) == ""
