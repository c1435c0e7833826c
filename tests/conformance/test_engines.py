"""One suite for every RolloutEngine: the scripted fake, SGLang's client against the embedded engine, and, with
`make test-sglang`, against a real SGLang and through sglang-router. Where they differ, SGLang is right."""

import asyncio
import dataclasses
import itertools
import json
import math
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.engines.fleet import EngineFleet
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from gpu_workers.models.folder import write_json
from tests.sglang import server
from tests.support.engines import Case
from tests.support.transfers import changed
from tests.unit.gpu_workers.engines.serving import make_adapter, serving

KINDS = ["scripted", "embedded", *(["sglang", "router"] if server.FOLDER else [])]
PROMPT = (1, 20, 21, 22, 23)
ADAPTER = "run-1.a1@v1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def tiny_weights(folder: Path) -> tuple[Path, Path]:
    """Without an end token: a request ends only when a test ends it."""
    own, other = tiny.prepare(folder), tiny.prepare(folder, seed=1, name="other")
    for model in (own, other):
        write_json(model / "generation_config.json", {"eos_token_id": []})
    return own, other


@pytest.fixture(scope="module")
def embedded_url(tiny_weights: tuple[Path, Path]) -> Iterator[str]:
    with serving(tiny_weights[0], "--max-loras", "3") as (url, _):
        yield url


@pytest.fixture(scope="module")
def smollm2(folder: Path) -> tuple[Path, Path]:
    own = server.model()
    return own, changed(own, folder / "changed")


@pytest.fixture(scope="module")
def sglang_url(smollm2: tuple[Path, Path]) -> Iterator[str]:
    with server.sglang(smollm2[0]) as url:
        yield url


@pytest.fixture(scope="module")
def router_url(sglang_url: str) -> Iterator[str]:
    with server.router(sglang_url) as url:
        yield url


@pytest.fixture(params=KINDS)
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    if request.param in ("scripted", "embedded"):
        weights = request.getfixturevalue("tiny_weights")
        if request.param == "scripted":
            engine = ScriptedEngine(token_seconds=0.001, max_adapters=3, eos_id=-1, model_path=str(weights[0]))
        else:
            engine = SGLangEngine(request.getfixturevalue("embedded_url"))
        made = Case(engine, make_adapter, weights, PROMPT, long=900, medium=200, patience=60)
    else:
        made = real(request)
    yield made
    await made.reset()
    await made.engine.close()


def real(request: pytest.FixtureRequest) -> Case:
    """SGLang draws without regard to the seed on a CPU, and takes a token id as it comes."""
    smollm2: tuple[Path, Path] = request.getfixturevalue("smollm2")
    url = request.getfixturevalue("sglang_url")
    engine: SGLangEngine | EngineFleet = SGLangEngine(url)
    if request.param == "router":
        engine = EngineFleet([(url, engine)], router=SGLangEngine(request.getfixturevalue("router_url")))
    adapter = partial(make_adapter, model=json.loads((smollm2[0] / "config.json").read_text()))
    return Case(
        engine, adapter, smollm2, server.ENDLESS_PROMPT, long=600, medium=32, patience=240, seeded=False,
        max_adapters=server.MAX_LOADED_LORAS, checks_vocabulary=False, survives_torn_files=False,
    )  # fmt: skip


async def test_ids_and_logprobs_fit_together(case: Case) -> None:
    result = await case.engine.generate(case.ask(12, temperature=1.0))
    assert 1 <= len(result.output_ids) <= 12
    assert len(result.logprobs) == len(result.output_ids)
    assert all(math.isfinite(p) and p <= 0 for p in result.logprobs)
    assert result.finish_reason == ("length" if len(result.output_ids) == 12 else "stop")
    assert [(s.start, s.stop) for s in result.spans] == [(0, len(result.output_ids))]
    assert result.spans[0].version == (await case.engine.info()).weight_version
    assert 0 <= result.queue_seconds <= result.engine_seconds < case.patience


async def test_a_seed_repeats_and_another_differs(case: Case) -> None:
    if not case.seeded:
        pytest.skip("SGLang ignores sampling_seed on a CPU")
    first, again, other = [await case.engine.generate(case.ask(24, seed=s, temperature=1.0)) for s in (5, 5, 6)]
    assert first.output_ids == again.output_ids
    assert first.output_ids != other.output_ids


async def test_greedy_ignores_the_seed(case: Case) -> None:
    first, other = [await case.engine.generate(case.ask(16, seed=seed)) for seed in (5, 6)]
    assert first.output_ids == other.output_ids


async def test_a_stop_token_ends_the_answer_and_is_part_of_it(case: Case) -> None:
    free = (await case.engine.generate(case.ask(16))).output_ids
    stop = free[5]
    result = await case.engine.generate(case.ask(16, stop_ids=(stop,)))
    assert result.finish_reason == "stop"
    assert result.output_ids == free[: free.index(stop) + 1]


async def test_a_stream_is_cumulative(case: Case) -> None:
    whole = (await case.engine.generate(case.ask(10))).output_ids
    results = [result async for result in case.engine.stream(case.ask(10))]
    assert results[-1].output_ids == whole
    assert results[-1].finish_reason in ("length", "stop")
    assert len(results) > 1
    for earlier, later in itertools.pairwise(results):
        assert earlier.finish_reason == ""
        assert later.output_ids[: len(earlier.output_ids)] == earlier.output_ids
        assert later.logprobs[: len(earlier.logprobs)] == earlier.logprobs
        assert len(later.output_ids) > len(earlier.output_ids) or later.finish_reason


async def test_a_repeated_prompt_is_found_in_the_cache(case: Case) -> None:
    prompt = tuple(range(20, 80))
    await case.engine.flush_cache()
    first, again = [await case.engine.generate(case.ask(2, prompt=prompt)) for _ in range(2)]
    if first.cached_tokens == again.cached_tokens == 0:
        pytest.skip("it computes nothing, so it caches nothing")
    assert first.cached_tokens == 0
    assert 0 < again.cached_tokens <= len(prompt)
    await case.engine.flush_cache()
    assert (await case.engine.generate(case.ask(2, prompt=prompt))).cached_tokens == 0


async def test_abort_answers_with_the_partial_output(case: Case) -> None:
    task = await case.begin(case.ask(case.long, rid="doomed"))
    await case.engine.abort("doomed")
    result = await case.within(task)
    assert result.finish_reason == "abort"
    assert 0 < len(result.output_ids) < case.long
    assert len(result.logprobs) == len(result.output_ids)
    assert [(s.start, s.stop) for s in result.spans] == [(0, len(result.output_ids))]


async def test_abort_of_an_unknown_request_harms_nobody(case: Case) -> None:
    task = await case.begin(case.ask(case.medium, rid="somebody"))
    await case.engine.abort("nobody")
    await case.engine.abort("some")
    await case.engine.abort("somebody else")
    assert len((await case.within(task)).output_ids) == case.medium


async def test_a_name_that_starts_like_another_is_not_aborted_with_it(case: Case) -> None:
    short, longer = await case.begin(case.ask(case.long, rid="e1")), await case.begin(case.ask(case.long, rid="e12"))
    await case.engine.abort("e1")
    assert (await case.within(short)).finish_reason == "abort"
    assert not longer.done()
    await case.engine.abort("e12")
    assert (await case.within(longer)).finish_reason == "abort"


async def test_a_cancelled_call_stops_the_engine(case: Case) -> None:
    task = asyncio.create_task(case.engine.generate(case.ask(case.long, rid="left")))
    await case.until_busy()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await case.until_idle()


async def test_a_stream_that_is_left_stops_the_engine(case: Case) -> None:
    stream = case.engine.stream(case.ask(case.long))
    async for result in stream:
        if result.output_ids:
            break
    await stream.aclose()
    await case.until_idle()


async def test_pause_abort_ends_requests_and_new_ones_wait(case: Case) -> None:
    task = await case.begin(case.ask(case.long))
    await case.engine.pause("abort")
    assert (await case.within(task)).finish_reason == "abort"
    waiting = asyncio.ensure_future(case.engine.generate(case.ask(4)))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await case.engine.resume()
    assert (await case.within(waiting)).output_ids


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_request_continues_where_it_was(case: Case, mode: str) -> None:
    undisturbed = await case.engine.generate(case.ask(case.medium))
    task = await case.begin(case.ask(case.medium))
    await case.engine.pause(mode)
    await asyncio.sleep(0.05)
    assert not task.done()
    await case.engine.resume()
    assert (await case.within(task)).output_ids == undisturbed.output_ids


async def test_an_unknown_pause_mode_is_refused(case: Case) -> None:
    with pytest.raises(WorkerError):
        await case.engine.pause("nicely")
    assert (await case.within(case.engine.generate(case.ask(2)))).output_ids


async def test_flush_is_refused_while_requests_hold_the_cache(case: Case) -> None:
    await case.engine.flush_cache()
    task = await case.begin(case.ask(case.long, rid="held"))
    with pytest.raises(EngineError) as refused:
        await case.engine.flush_cache()
    assert refused.value.boundary is Boundary.ENGINE
    assert refused.value.status == 400
    await case.engine.pause("in_place")
    with pytest.raises(EngineError):
        await case.engine.flush_cache()
    await case.engine.pause("retract")
    await case.until_idle()  # a retraction may take effect a moment after its answer
    await case.engine.resume()
    await case.engine.abort("held")
    await case.within(task)


async def test_other_weights_change_answers_and_version_and_undoing_restores_them(case: Case) -> None:
    own, other = map(str, case.weights)
    before = await case.engine.generate(case.ask(8))
    await case.engine.update_weights(other, "run-1.a1@v1")
    info = await case.engine.info()
    assert (info.weight_version, info.model_path) == ("run-1.a1@v1", other)
    changed = await case.engine.generate(case.ask(8))
    assert (changed.output_ids, changed.logprobs) != (before.output_ids, before.logprobs)
    assert [span.version for span in changed.spans] == ["run-1.a1@v1"]
    await case.engine.update_weights(own, "default")
    again = await case.engine.generate(case.ask(8))
    assert again.output_ids == before.output_ids
    assert again.logprobs == pytest.approx(before.logprobs, abs=1e-4)


@pytest.mark.parametrize("damage", ["absent", "empty", "torn"])
async def test_weights_that_cannot_be_read_leave_the_old_ones(case: Case, tmp_path: Path, damage: str) -> None:
    if damage == "torn" and not case.survives_torn_files:
        pytest.skip("SGLang ends when it is given a torn file: a transfer checks digests before the engine reads")
    before = await case.engine.generate(case.ask(8))
    bad = tmp_path / "bad"
    if damage != "absent":
        bad.mkdir()
        for file in case.weights[1].iterdir():
            if file.suffix != ".safetensors":
                (bad / file.name).write_bytes(file.read_bytes())
        if damage == "torn":
            whole = (case.weights[1] / "model.safetensors").read_bytes()
            (bad / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EngineError) as refused:
        await case.engine.update_weights(str(bad), "run-1.a1@v2")
    assert refused.value.status == 400
    assert (await case.engine.info()).weight_version == "default"
    after = await case.engine.generate(case.ask(8))
    assert after.output_ids == before.output_ids
    assert [span.version for span in after.spans] == ["default"]


@pytest.mark.parametrize(("mode", "flush"), [("retract", True), ("in_place", False)])
async def test_an_update_during_a_request_is_told_token_by_token(case: Case, mode: str, flush: bool) -> None:
    """in_place without a flush goes on over the old keys and values; Ratchet never asks for that."""
    task = await case.begin(case.ask(case.medium))
    await case.engine.pause(mode)
    await case.within(case.engine.update_weights(str(case.weights[1]), "run-1.a1@v3", flush_cache=flush))
    await case.engine.resume()
    spans = (await case.within(task)).spans
    assert [span.version for span in spans] == ["default", "run-1.a1@v3"]
    assert spans[0].start == 0
    assert spans[0].stop == spans[1].start > 0
    assert spans[1].stop == case.medium


async def test_an_update_waits_for_running_requests(case: Case) -> None:
    task = await case.begin(case.ask(case.medium))
    update = asyncio.ensure_future(case.engine.update_weights(str(case.weights[1]), "run-1.a1@v4"))
    result = await case.within(task)
    assert [span.version for span in result.spans] == ["default"]
    await case.within(update)
    assert [span.version for span in (await case.engine.generate(case.ask(2))).spans] == ["run-1.a1@v4"]


async def test_an_adapter_is_loaded_listed_used_and_unloaded(case: Case, tmp_path: Path) -> None:
    base = (await case.engine.generate(case.ask(16))).output_ids
    await case.engine.load_adapter(ADAPTER, str(case.adapter(tmp_path / "a")))
    assert (await case.engine.info()).adapters == (ADAPTER,)
    adapted, plain = await asyncio.gather(
        case.engine.generate(case.ask(16, adapter=ADAPTER)), case.engine.generate(case.ask(16))
    )
    assert adapted.output_ids != base
    assert plain.output_ids == base, "rows under an adapter and without one share a batch"
    await case.engine.unload_adapter(ADAPTER)
    assert (await case.engine.info()).adapters == ()
    with pytest.raises(EngineError, match=r"run-1\.a1@v2"):
        await case.engine.generate(case.ask(adapter="run-1.a1@v2"))


async def test_the_same_name_loaded_again_has_the_new_weights(case: Case, tmp_path: Path) -> None:
    """Neither the adapter's old matrices nor keys and values computed with them."""
    answers = []
    for seed in (1, 2):
        await case.engine.load_adapter("a", str(case.adapter(tmp_path / str(seed), seed=seed)))
        answers.append((await case.engine.generate(case.ask(12, adapter="a"))).output_ids)
        await case.engine.unload_adapter("a")
    assert answers[0] != answers[1]


async def test_adapter_refusals_say_why(case: Case, tmp_path: Path) -> None:
    folder = str(case.adapter(tmp_path / "a"))
    await case.engine.load_adapter("a", folder)
    with pytest.raises(EngineError, match=r"a.*already loaded") as twice:
        await case.engine.load_adapter("a", folder)
    with pytest.raises(EngineError, match="missing") as absent:
        await case.engine.load_adapter("b", str(tmp_path / "missing"))
    with pytest.raises(EngineError, match="b") as unknown:
        await case.engine.unload_adapter("b")
    with pytest.raises(EngineError, match="b") as unheard:
        await case.engine.generate(case.ask(adapter="b"))
    assert {e.value.status for e in (twice, absent, unknown, unheard)} == {400}
    assert (await case.engine.info()).adapters == ("a",)
    assert (await case.engine.generate(case.ask(2, adapter="a"))).output_ids


async def test_more_adapters_than_fit_push_out_the_least_used(case: Case, tmp_path: Path) -> None:
    """And a request for one that was pushed out brings it back: an engine drops no version that is still asked for."""
    names = [f"v{number}" for number in range(case.max_adapters + 1)]
    for number, name in enumerate(names):
        await case.engine.load_adapter(name, str(case.adapter(tmp_path / name, seed=number)))
    assert set((await case.engine.info()).adapters) == set(names[1:])
    assert (await case.engine.generate(case.ask(2, adapter=names[0]))).output_ids
    held = (await case.engine.info()).adapters
    assert names[0] in held
    assert len(held) == case.max_adapters


async def test_unload_waits_for_running_requests(case: Case, tmp_path: Path) -> None:
    """Later ones wait for the unload, and bring the adapter back."""
    await case.engine.load_adapter("a", str(case.adapter(tmp_path / "a", std=0.001)))
    task = await case.begin(case.ask(case.long, rid="user", adapter="a"))
    unload = asyncio.ensure_future(case.engine.unload_adapter("a"))
    await asyncio.sleep(0.2)
    assert not unload.done()
    late = asyncio.ensure_future(case.engine.generate(case.ask(2, adapter="a")))
    await asyncio.sleep(0.1)
    assert not late.done()
    await case.engine.abort("user")
    await case.within(asyncio.gather(task, unload))
    assert (await case.within(late)).output_ids
    assert (await case.engine.info()).adapters == ("a",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": ()}, "empty"),
        ({"input_ids": (1, 100_000_000)}, "vocabulary"),
        ({"sampling": Sampling(max_new_tokens=100_000)}, "context length"),
        ({"sampling": Sampling(max_new_tokens=0)}, "max_new_tokens"),
        ({"sampling": Sampling(max_new_tokens=4, top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(max_new_tokens=4, temperature=-1.0)}, "temperature"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_bad_request_is_refused_for_good(case: Case, changes: dict, message: str, streamed: bool) -> None:
    if message == "vocabulary" and not case.checks_vocabulary:
        pytest.skip("SGLang ends when it is given an id outside the vocabulary")
    request = dataclasses.replace(case.ask(), **changes)
    with pytest.raises(EngineError, match=message) as refused:
        if streamed:
            [_ async for _ in case.engine.stream(request)]
        else:
            await case.engine.generate(request)
    assert refused.value.boundary is Boundary.ENGINE
    assert refused.value.status == 400
    assert not refused.value.retryable


async def test_many_at_once_all_end(case: Case) -> None:
    num = 100 if case.seeded else 48
    asked = [case.ask(6, seed=seed, temperature=1.5, prompt=(1, 30)) for seed in range(num)]
    results = await asyncio.gather(*(case.engine.generate(request) for request in asked))
    assert len({tuple(r.output_ids) for r in results}) > num // 2
    assert all(r.finish_reason in ("stop", "length") for r in results)


async def test_it_reports_itself(case: Case) -> None:
    await case.until_idle()
    before = await case.engine.metrics()
    gaps_before = await case.engine.token_gaps()
    # Streamed: of an answer that is sent whole, SGLang measures no gaps.
    result = [result async for result in case.engine.stream(case.ask(9))][-1]
    assert await case.engine.healthy()

    def grown(name: str, after: dict[str, float]) -> float:
        return after[f"sglang:{name}"] - before.get(f"sglang:{name}", 0.0)

    async def reported() -> dict[str, float]:
        while True:
            after = await case.engine.metrics()
            if grown("num_requests_total", after):
                return after
            await asyncio.sleep(0.1)

    after = await case.within(reported())
    gaps = await case.engine.token_gaps()
    assert grown("generation_tokens_total", after) == len(result.output_ids)
    assert grown("num_requests_total", after) == 1
    assert gaps[math.inf] - gaps_before.get(math.inf, 0.0) >= len(result.output_ids) - 1
    assert {"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:cache_hit_rate"} <= set(after)
    assert (await case.engine.info()).model_path
