"""One suite for every RolloutEngine: the scripted fake, and SGLang's client against the embedded engine."""

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest, RolloutEngine, WorkerError
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from gpu_workers.models.folder import write_json
from tests.unit.gpu_workers.engines.serving import make_adapter, serving

LONG = 900  # tokens: far more than any test waits for
PROMPT = (1, 20, 21, 22, 23)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def embedded_url(folder: Path) -> Iterator[str]:
    model = tiny.prepare(folder)
    # No end token: a request ends only when a test ends it.
    write_json(model / "generation_config.json", {"eos_token_id": []})
    with serving(model, "--max-loras", "3") as (url, _):
        yield url


@pytest.fixture(params=["scripted", "embedded"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[RolloutEngine]:
    made: RolloutEngine
    if request.param == "scripted":
        made = ScriptedEngine(token_seconds=0.001, max_adapters=3, eos_id=-1)
    else:
        made = SGLangEngine(request.getfixturevalue("embedded_url"))
    yield made
    await made.resume()
    for name in (await made.info()).adapters:
        await made.unload_adapter(name)
    await made.close()


def ask(
    max_new_tokens: int = 8, *, rid: str = "", adapter: str = "", stop_ids: tuple[int, ...] = (), **kw
) -> GenerateRequest:
    sampling = Sampling(max_new_tokens=max_new_tokens, **kw)
    return GenerateRequest(PROMPT, sampling, adapter=adapter, request_id=rid, stop_token_ids=stop_ids)


async def started(engine: RolloutEngine, num: int = 1) -> None:
    """Until the engine runs `num` requests."""
    for _ in range(500):
        if (await engine.metrics())["sglang:num_running_reqs"] >= num:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the request did not start")


async def long_request(engine: RolloutEngine, rid: str, **kw) -> asyncio.Task:
    """A request that takes seconds unless something ends it."""
    task = asyncio.ensure_future(engine.generate(ask(LONG, rid=rid, seed=kw.pop("seed", 4), **kw)))
    await started(engine)
    return task


async def test_ids_and_logprobs_fit_together(engine: RolloutEngine) -> None:
    result = await engine.generate(ask(12))
    assert 1 <= len(result.output_ids) <= 12
    assert len(result.logprobs) == len(result.output_ids)
    assert all(math.isfinite(p) and p <= 0 for p in result.logprobs)
    assert result.finish_reason == ("length" if len(result.output_ids) == 12 else "stop")
    assert [(s.start, s.stop) for s in result.spans] == [(0, len(result.output_ids))]
    assert result.spans[0].version == (await engine.info()).weight_version


async def test_a_seed_repeats_and_another_differs(engine: RolloutEngine) -> None:
    first, again, other = [await engine.generate(ask(24, seed=seed)) for seed in (5, 5, 6)]
    assert first.output_ids == again.output_ids
    assert first.output_ids != other.output_ids


async def test_greedy_ignores_the_seed(engine: RolloutEngine) -> None:
    first, other = [await engine.generate(ask(24, seed=seed, temperature=0.0)) for seed in (5, 6)]
    assert first.output_ids == other.output_ids


async def test_a_stop_token_ends_the_answer_and_is_part_of_it(engine: RolloutEngine) -> None:
    free = (await engine.generate(ask(16, temperature=0.0))).output_ids
    stop = free[5]
    result = await engine.generate(ask(16, temperature=0.0, stop_ids=(stop,)))
    assert result.finish_reason == "stop"
    assert result.output_ids == free[: free.index(stop) + 1]


async def test_a_stream_is_cumulative(engine: RolloutEngine) -> None:
    whole = (await engine.generate(ask(10, seed=3))).output_ids
    results = [result async for result in engine.stream(ask(10, seed=3))]
    assert results[-1].output_ids == whole
    assert results[-1].finish_reason in ("length", "stop")
    for earlier, later in itertools.pairwise(results):
        assert later.output_ids[: len(earlier.output_ids)] == earlier.output_ids


async def test_abort_answers_with_the_partial_output(engine: RolloutEngine) -> None:
    task = await long_request(engine, "doomed")
    await asyncio.sleep(0.05)
    await engine.abort("doomed")
    result = await asyncio.wait_for(task, 30)
    assert result.finish_reason == "abort"
    assert 0 < len(result.output_ids) < LONG
    assert len(result.logprobs) == len(result.output_ids)


async def test_abort_of_an_unknown_request_harms_nobody(engine: RolloutEngine) -> None:
    await engine.abort("nobody")
    assert (await engine.generate(ask(3))).output_ids


async def test_a_cancelled_call_stops_the_engine(engine: RolloutEngine) -> None:
    task = await long_request(engine, "left")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(200):
        if (await engine.metrics())["sglang:num_running_reqs"] == 0:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the engine went on for nobody")


async def test_pause_abort_ends_requests_and_new_ones_wait(engine: RolloutEngine) -> None:
    task = await long_request(engine, "")
    await engine.pause("abort")
    assert (await asyncio.wait_for(task, 30)).finish_reason == "abort"
    waiting = asyncio.ensure_future(engine.generate(ask(4)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await engine.resume()
    assert (await asyncio.wait_for(waiting, 30)).output_ids


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_request_continues_where_it_was(engine: RolloutEngine, mode: str) -> None:
    undisturbed = await engine.generate(ask(800, seed=4))
    task = asyncio.ensure_future(engine.generate(ask(800, seed=4)))
    await started(engine)
    await engine.pause(mode)
    await asyncio.sleep(0.05)
    assert not task.done()
    await engine.resume()
    assert (await asyncio.wait_for(task, 10)).output_ids == undisturbed.output_ids


async def test_flush_is_refused_while_requests_hold_the_cache(engine: RolloutEngine) -> None:
    await engine.flush_cache()
    task = await long_request(engine, "held")
    await engine.pause("in_place")
    with pytest.raises(WorkerError) as refused:
        await engine.flush_cache()
    assert refused.value.boundary is Boundary.ENGINE
    await engine.pause("retract")
    await engine.flush_cache()
    await engine.resume()
    await engine.abort("held")
    await asyncio.wait_for(task, 30)


async def test_an_adapter_is_loaded_listed_used_and_unloaded(engine: RolloutEngine, tmp_path: Path) -> None:
    base = (await engine.generate(ask(24, seed=1))).output_ids
    await engine.load_adapter("run-1.a1@v1", str(make_adapter(tmp_path / "a")))
    assert (await engine.info()).adapters == ("run-1.a1@v1",)
    adapted = (await engine.generate(ask(24, seed=1, adapter="run-1.a1@v1"))).output_ids
    assert adapted != base
    assert (await engine.generate(ask(24, seed=1))).output_ids == base
    await engine.unload_adapter("run-1.a1@v1")
    assert (await engine.info()).adapters == ()
    with pytest.raises(WorkerError, match=r"run-1\.a1@v1"):
        await engine.generate(ask(adapter="run-1.a1@v1"))


async def test_adapter_refusals_say_why(engine: RolloutEngine, tmp_path: Path) -> None:
    folder = str(make_adapter(tmp_path / "a"))
    await engine.load_adapter("a", folder)
    with pytest.raises(WorkerError, match="already loaded"):
        await engine.load_adapter("a", folder)
    with pytest.raises(WorkerError, match="cannot read"):
        await engine.load_adapter("b", str(tmp_path / "missing"))
    with pytest.raises(WorkerError, match="not loaded"):
        await engine.unload_adapter("b")
    await engine.load_adapter("b", folder)
    await engine.load_adapter("c", folder)
    with pytest.raises(WorkerError, match="limit is 3"):
        await engine.load_adapter("d", folder)


async def test_unload_waits_for_running_requests(engine: RolloutEngine, tmp_path: Path) -> None:
    await engine.load_adapter("a", str(make_adapter(tmp_path / "a", std=0.01)))
    task = await long_request(engine, "user", adapter="a")
    unload = asyncio.ensure_future(engine.unload_adapter("a"))
    await asyncio.sleep(0.1)
    assert not unload.done()
    with pytest.raises(WorkerError, match="not loaded"):
        await engine.generate(ask(adapter="a"))
    await engine.abort("user")
    await asyncio.wait_for(asyncio.gather(task, unload), 30)
    assert (await engine.info()).adapters == ()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerateRequest((), Sampling()), "empty"),
        (GenerateRequest((1, 100_000_000), Sampling()), "vocabulary"),
        (GenerateRequest(PROMPT, Sampling(max_new_tokens=100_000)), "context length"),
        (GenerateRequest(PROMPT, Sampling(top_p=0.0)), "top_p"),
    ],
)
async def test_a_bad_request_is_refused_for_good(
    engine: RolloutEngine, request_: GenerateRequest, message: str
) -> None:
    with pytest.raises(WorkerError, match=message) as refused:
        await engine.generate(request_)
    assert refused.value.boundary is Boundary.ENGINE
    assert not refused.value.retryable


async def test_many_at_once_all_end(engine: RolloutEngine) -> None:
    results = await asyncio.gather(*(engine.generate(ask(6, seed=seed)) for seed in range(100)))
    assert len({tuple(r.output_ids) for r in results}) > 50
    assert all(r.finish_reason in ("stop", "length") for r in results)


async def test_it_reports_itself(engine: RolloutEngine) -> None:
    before = await engine.metrics()
    gaps_before = await engine.token_gaps()
    result = await engine.generate(ask(9, seed=1))
    after, gaps = await engine.metrics(), await engine.token_gaps()
    assert await engine.healthy()
    sampled = after["sglang:generation_tokens_total"] - before["sglang:generation_tokens_total"]
    assert sampled == len(result.output_ids)
    assert after["sglang:num_requests_total"] - before["sglang:num_requests_total"] == 1
    assert gaps[math.inf] - gaps_before[math.inf] >= len(result.output_ids) - 1
    assert (await engine.info()).model_path
