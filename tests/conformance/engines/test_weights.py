"""Other base weights from disk: version, answers, refusals, and what runs meanwhile."""

import asyncio
from pathlib import Path

import pytest

from gpu_workers.engines.http import EngineError
from tests.support.engines import Case


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


async def test_weights_that_were_staged_are_served_only_when_they_are_asked_for(case: Case) -> None:
    """SGLang cannot stage and says so; an update does the same either way."""
    own, other = map(str, case.weights)
    before, digest = await case.engine.generate(case.ask(8)), await case.engine.weights_digest()
    await case.engine.stage_weights(other)
    info = await case.engine.info()
    assert (info.weight_version, info.model_path, await case.engine.weights_digest()) == ("default", own, digest)
    assert (await case.engine.generate(case.ask(8))).output_ids == before.output_ids
    await case.engine.update_weights(other, "run-1.a1@v5")
    assert (await case.engine.info()).model_path == other and await case.engine.weights_digest() != digest
    changed = await case.engine.generate(case.ask(8))
    assert (changed.output_ids, changed.logprobs) != (before.output_ids, before.logprobs)
    await case.engine.update_weights(own, "default")
    assert await case.engine.weights_digest() == digest
