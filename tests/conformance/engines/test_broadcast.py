"""Weights that come over a process group: order of the calls, answers, refusals, and a sender that goes away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gpu_workers.contracts.seams import GroupAddress
from gpu_workers.engines.collective import CollectiveCalls
from gpu_workers.engines.http import EngineError
from gpu_workers.weights.buckets import open_file, plan_buckets
from gpu_workers.weights.sender import close_kept, keep_sender
from tests.support.broadcasts import Rank0
from tests.support.engines import Case

VERSION = "run-1.a1@v1"


@pytest.fixture(scope="module", autouse=True)
def sender_process():
    yield
    close_kept()


@pytest.fixture
async def rank0(case: Case) -> AsyncIterator[Rank0]:
    """In a group with the engine, over the file of the other weights."""
    if not isinstance(case.engine, CollectiveCalls):
        pytest.skip("a process group has engines as members: no fake, and no router")
    file = case.weights[1] / "model.safetensors"
    size = sum(span.num_bytes for span in open_file(file).spans.values())
    rank0 = Rank0(case.engine, file, bucket_bytes=size // 3)
    await rank0.form()
    yield rank0
    if rank0.sender.alive:
        await rank0.leave()
    keep_sender(rank0.sender)


async def restore(case: Case, rank0: Rank0) -> None:
    """Whatever a test left: no session, the old weights."""
    await refused_or_done(rank0.engine.end_update())
    await case.engine.update_weights(str(case.weights[0]), "default")


async def test_sent_weights_answer_like_the_same_weights_from_disk(case: Case, rank0: Rank0) -> None:
    before = await case.engine.generate(case.ask(8))
    own_digest = await case.engine.weights_digest()
    await case.engine.update_weights(str(case.weights[1]), VERSION)
    from_disk, digest = await case.engine.generate(case.ask(8)), await case.engine.weights_digest()
    await case.engine.update_weights(str(case.weights[0]), "default")
    assert await case.engine.weights_digest() == own_digest != digest

    assert len(rank0.buckets) >= 3
    await case.engine.pause("retract")
    await rank0.engine.begin_update()
    await rank0.send_all()
    await rank0.engine.end_update()
    assert await case.engine.weights_digest() == digest
    assert (await case.engine.info()).weight_version == "default", "a version is named when all is there, not before"
    await rank0.engine.set_version(VERSION)
    await case.engine.flush_cache()
    await case.engine.resume()

    assert (await case.engine.info()).weight_version == VERSION
    sent = await case.engine.generate(case.ask(8))
    assert sent.output_ids == from_disk.output_ids
    assert sent.logprobs == pytest.approx(from_disk.logprobs, abs=1e-4)
    assert (sent.output_ids, sent.logprobs) != (before.output_ids, before.logprobs)
    assert [span.version for span in sent.spans] == [VERSION]
    await restore(case, rank0)


async def test_a_request_under_way_goes_on_with_what_was_sent(case: Case, rank0: Rank0) -> None:
    task = await case.begin(case.ask(case.medium))
    await case.engine.pause("retract")
    await rank0.engine.begin_update()
    await rank0.send_all()
    await rank0.engine.end_update()
    await rank0.engine.set_version(VERSION)
    await case.until_idle()
    await case.engine.resume()
    spans = (await case.within(task)).spans
    assert [span.version for span in spans] == ["default", VERSION]
    assert spans[1].stop == case.medium
    await restore(case, rank0)


async def test_calls_out_of_order_are_refused(case: Case, rank0: Rank0) -> None:
    before = await case.engine.generate(case.ask(8))
    engine, bucket = rank0.engine, rank0.buckets[0]
    await refused(engine.receive(bucket, rank0.group, seconds=30), "between begin_weight_update")
    await refused(engine.end_update(), "no weight-update session is open")
    await engine.begin_update()
    await refused(engine.begin_update(), "already open")
    await engine.end_update()
    await refused(engine.end_update(), "no weight-update session is open")
    await refused(engine.leave_group("never-there"), "does not exist")
    after = await case.engine.generate(case.ask(8))
    assert (after.output_ids, [span.version for span in after.spans]) == (before.output_ids, ["default"])


async def test_a_whole_update_that_was_left_open_can_be_discarded(case: Case, rank0: Rank0) -> None:
    """Its sender died before the end: whoever comes next must not swap it in under another version's name."""
    if not await rank0.engine.swaps_at_end():
        pytest.skip("it has loaded every tensor by then")
    digest = await case.engine.weights_digest()
    await rank0.engine.begin_update()
    for bucket in rank0.buckets:
        await rank0.send(bucket)
    assert await case.engine.weights_digest() == digest
    await rank0.engine.begin_update(discard=True)
    await rank0.engine.end_update()
    assert await case.engine.weights_digest() == digest


async def test_a_group_that_is_not_there_and_a_dtype_that_does_not_exist_are_refused(case: Case, rank0: Rank0) -> None:
    before = await case.engine.generate(case.ask(8))
    engine, bucket = rank0.engine, rank0.buckets[0]
    await engine.begin_update()
    await refused(engine.receive(bucket, "never-formed", seconds=30), "never-formed not in")
    odd = replace(bucket, dtypes=("float17",) * len(bucket.dtypes))
    await refused(engine.receive(odd, rank0.group, seconds=30), "Failed to receive weights")
    short = replace(bucket, shapes=bucket.shapes[:-1])
    await refused(engine.receive(short, rank0.group, seconds=30), "Failed to receive weights")
    await restore(case, rank0)
    assert (await case.engine.generate(case.ask(8))).output_ids == before.output_ids


async def test_a_shape_that_the_model_does_not_have_is_refused(case: Case, rank0: Rank0) -> None:
    """What an engine has then is for its digest to say, and an update from disk repairs it."""
    before = await case.engine.generate(case.ask(8))
    spans = open_file(rank0.file).spans
    name = "model.layers.0.mlp.down_proj.weight"
    bucket = plan_buckets({name: spans[name]})[0]
    await rank0.engine.begin_update()
    flipped = replace(bucket, shapes=(bucket.shapes[0][::-1],))
    await refused(rank0.send(bucket, announced=flipped), "Failed to update parameter online")
    await restore(case, rank0)
    assert (await case.engine.info()).weight_version == "default"
    assert (await case.engine.generate(case.ask(8))).output_ids == before.output_ids


async def test_a_sender_that_dies_fails_the_bucket_and_not_the_engine(case: Case, rank0: Rank0) -> None:
    before, digest = await case.engine.generate(case.ask(8)), await case.engine.weights_digest()
    await rank0.engine.begin_update()
    receiving = asyncio.create_task(rank0.engine.receive(rank0.buckets[0], rank0.group, seconds=case.patience))
    await asyncio.sleep(1.0)  # so that it waits for the bucket; too short only makes this test less telling
    rank0.sender.kill()
    await refused(receiving, "Failed to receive weights")
    await refused_or_done(rank0.engine.end_update())
    assert await case.engine.weights_digest() == digest
    await rank0.engine.leave_group(rank0.group)
    after = await case.engine.generate(case.ask(8))
    assert (after.output_ids, after.logprobs) == (before.output_ids, pytest.approx(before.logprobs, abs=1e-4))


async def test_a_backend_that_does_not_exist_is_refused(case: Case, rank0: Rank0) -> None:
    await rank0.leave()
    port = await rank0.sender.serve("127.0.0.1", seconds=30)
    address = GroupAddress(rank0.group, "127.0.0.1", port, 2, "carrier-pigeon")
    await refused(rank0.engine.join_group(address, 1, seconds=60), "Failed to initialize custom process group")
    await rank0.form()


async def refused(call, match: str) -> None:
    with pytest.raises(EngineError, match=match) as error:
        await asyncio.wait_for(call, 240)
    assert error.value.status == 400


async def refused_or_done(call) -> None:
    try:
        await call
    except EngineError as error:
        assert error.status == 400
