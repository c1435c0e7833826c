"""A group under way: given up from outside, or going on with a newer version with every token's version known."""

import asyncio
from pathlib import Path

import pytest

from gpu_workers.contracts.groups import decode_group
from gpu_workers.contracts.messages import GroupSignal, PolicyRef, Sampling
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.rollout.group import run_group
from gpu_workers.rollout.running import GroupCancelled, deliver
from tests.unit.gpu_workers.rollout.conftest import World

OLD, NEW = PolicyRef(adapter="run-1.a1@v3", version=3), PolicyRef(adapter="run-1.a1@v4", version=4)


@pytest.fixture
def engine(world: World) -> ScriptedEngine:
    """A slow engine that holds both versions; every answer ends at its limit of 40 tokens."""
    engine = ScriptedEngine(
        vocab_size=1000, eos_id=10_000, token_seconds=0.004, model_path=str(world.model), reply=lambda request: [7] * 40
    )
    engine.adapters = {OLD.adapter: "", NEW.adapter: ""}
    world.engines["http://one"] = engine  # type: ignore[assignment]
    return engine


def job(world: World, task: TaskBundle, group_id: str):
    return world.job(task, group_id=group_id, sampling=Sampling(max_new_tokens=40, seed=1))


async def until_sampling(engine: ScriptedEngine) -> None:
    async with asyncio.timeout(10):
        while engine.num_tokens < 20:
            await asyncio.sleep(0.002)


async def test_a_group_that_is_given_up_stops_its_requests_and_reports_nothing(
    world: World, engine: ScriptedEngine, task: TaskBundle
) -> None:
    running = asyncio.create_task(run_group(job(world, task, "given-up"), world.services()))
    await until_sampling(engine)
    assert deliver(GroupSignal(group_ids=["given-up", "of another worker"], reason="left behind")) == 1
    with pytest.raises(GroupCancelled, match="left behind"):
        await running
    assert (await engine.metrics())["sglang:num_running_reqs"] == 0
    assert world.backend.started == world.backend.closed
    sampled = engine.num_tokens
    with pytest.raises(GroupCancelled, match="left behind"):  # its message came late, or twice
        await run_group(job(world, task, "given-up"), world.services())
    assert engine.num_tokens == sampled


async def test_a_cancellation_that_no_signal_asked_for_stays_one(
    world: World, engine: ScriptedEngine, task: TaskBundle
) -> None:
    running = asyncio.create_task(run_group(job(world, task, "plain"), world.services()))
    await until_sampling(engine)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_episodes_go_on_with_a_newer_version_and_keep_what_they_have(
    world: World, engine: ScriptedEngine, task: TaskBundle
) -> None:
    running = asyncio.create_task(run_group(job(world, task, "moving"), world.services()))
    await until_sampling(engine)
    deliver(GroupSignal(group_ids=["moving"], policy=NEW))
    deliver(GroupSignal(group_ids=["moving"], policy=OLD))  # late: the older one is no news
    report = await running
    assert (report.min_version, report.max_version) == (3, 4)
    for episode in decode_group(world.store.get(report.uri)):
        versions = episode.versions[episode.mask == 1].tolist()
        assert len(versions) == 40  # of the turn, however many versions share it
        assert versions == sorted(versions) and set(versions) == {3, 4}
        assert episode.tokens[episode.mask == 1].tolist() == [7] * 40
    assert [record.stop_reason for record in report.episodes] == ["length"] * 4


async def test_an_engine_that_aborts_by_itself_is_still_a_failure(
    world: World, engine: ScriptedEngine, task: TaskBundle, tmp_path: Path
) -> None:
    running = asyncio.create_task(run_group(job(world, task, "aborted"), world.services()))
    await until_sampling(engine)
    await engine.pause("abort")
    report = await running
    assert report.boundary == "engine"
    assert "aborted" in report.error
