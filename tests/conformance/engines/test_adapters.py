"""Adapters: loaded, used beside the base, refused, pushed out, unloaded."""

import asyncio
from pathlib import Path

import pytest

from gpu_workers.engines.http import EngineError
from tests.support.engines import Case

ADAPTER = "run-1.a1@v1"


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
    assert {e.value.status for e in (twice, absent, unknown)} == {400}
    assert unheard.value.status == (0 if case.is_fleet else 400)
    assert (await case.engine.info()).adapters == ("a",)
    assert (await case.engine.generate(case.ask(2, adapter="a"))).output_ids


async def test_more_adapters_than_fit_push_out_the_least_used(case: Case, tmp_path: Path) -> None:
    """And a request for one that was pushed out brings it back: an engine drops no version that is still asked for."""
    names = [f"v{number}" for number in range(case.max_adapters + 1)]
    for number, name in enumerate(names):
        await case.engine.load_adapter(name, str(case.adapter(tmp_path / name, seed=number)))
    assert set((await case.engine.info()).adapters) == set(names[1:])
    if case.is_fleet:
        with pytest.raises(EngineError, match="does not hold adapter v0"):
            await case.engine.generate(case.ask(2, adapter=names[0]))
        return
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
