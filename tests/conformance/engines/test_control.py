"""Control of running requests: abort, cancel, pause, flush."""

import asyncio

import pytest

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.engines.http import EngineError
from tests.support.engines import Case


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
