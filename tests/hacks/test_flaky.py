"""Pattern 18: a flaky check is quarantined, at import and while episodes are judged; a rerun never turns it green."""

import pytest
from msgspec.structs import replace

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.verifiers.gate import check_task
from tests.hacks.flaky import TIMED, TOSSED
from tests.hacks.world import RIGHT, World, solve

PLAYS = {"a coin": (TOSSED, ["42"]), "a clock": (TIMED, solve(RIGHT))}


@pytest.mark.parametrize("name", PLAYS)
async def test_an_episode_that_repeats_disagree_about_is_quarantined(world: World, name: str) -> None:
    task, turns = PLAYS[name]
    record = await world.play(task, turns)
    if record.verdict is not Verdict.QUARANTINED:  # ten agree by chance once in 512 times
        record = await world.play(task, turns)
    assert (record.verdict, record.reward, record.reason_code) == (
        Verdict.QUARANTINED, None, ReasonCode.VERIFIER_FLAKY,
    ), record.message  # fmt: skip
    assert not record.success


@pytest.mark.parametrize("name", PLAYS)
async def test_the_gate_refuses_a_flaky_task(world: World, name: str) -> None:
    task: TaskBundle = replace(PLAYS[name][0], verifier=replace(PLAYS[name][0].verifier, repeats=1))
    check = await check_task(task, world.backend, repeats=20)
    assert not check.ok
    assert check.reason_code == ReasonCode.VERIFIER_FLAKY, check.message
