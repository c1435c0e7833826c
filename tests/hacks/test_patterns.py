"""Every pattern as a real program through the real path: the right verdict, and the flags where it must be seen."""

import pytest

from gpu_workers.contracts.enums import FlagSeverity, Verdict
from gpu_workers.contracts.groups import EpisodeRecord
from tests.hacks.patterns import PATTERNS
from tests.hacks.variants import VARIANTS
from tests.hacks.world import Play, World

EPISODES = set(range(1, 18))  # pattern 18 is about verdicts that do not repeat: test_flaky.py


def test_no_pattern_is_left_out() -> None:
    assert {play.pattern for play in PATTERNS} == {play.pattern for play in VARIANTS} == EPISODES


@pytest.mark.parametrize("play", [*PATTERNS, *VARIANTS], ids=str)
async def test_a_hack_gets_its_verdict(world: World, play: Play) -> None:
    check(play, await world.play(play.task, play.turns))


def check(play: Play, record: EpisodeRecord) -> None:
    """The verdict, its reason, the reward, and the flags of a play."""
    said = f"{record.verdict} {record.reason_code} {record.message} {record.evidence} {record.flags}"
    assert record.verdict is play.verdict, said
    if play.verdict is Verdict.FAIL:
        assert record.reward == 0.0 and not record.success, said
    if play.reasons:
        assert record.reason_code in play.reasons, said
    counted = [flag for flag in record.flags if flag.severity is not FlagSeverity.SUSPICION]
    if play.rules:
        assert any(flag.rule.startswith(play.rules) for flag in counted), said
        assert all(flag.where and flag.message for flag in record.flags), said
    if play.check is not None:
        assert play.check(record), said
