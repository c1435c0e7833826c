"""What a request is answered with, and what an engine says of itself."""

import asyncio
import dataclasses
import itertools
import math

import pytest

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import Sampling
from gpu_workers.engines.http import EngineError
from tests.support.engines import Case


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": ()}, "empty"),
        ({"input_ids": (1, 100_000_000)}, "vocabulary"),
        ({"sampling": Sampling(max_new_tokens=100_000)}, "context length"),
        ({"sampling": Sampling(max_new_tokens=0)}, "max_new_tokens"),
        ({"sampling": Sampling(max_new_tokens=4, top_p=0.0)}, "top_p"),
        ({"sampling": Sampling(max_new_tokens=4, temperature=-1.0)}, "temperature"),
        ({"constraint": Constraint(ConstraintKind.REGEX, "[a-z")}, "regex"),
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
