"""Several engines as one: who is asked, who is left out, and when it comes back."""

import asyncio
from pathlib import Path

import pytest

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, VersionSpan, WorkerError
from gpu_workers.engines import fleet as module
from gpu_workers.engines.fleet import EngineFleet
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.versions import check_versions, is_served
from tests.unit.gpu_workers.engines.serving import make_adapter


class Mortal(ScriptedEngine):
    """An engine that can die, and comes back as it was when it first started."""

    def __init__(self, *, after: int = -1) -> None:
        super().__init__()
        self.up = True
        self.dies_after = after  # tokens
        self.num_asked = 0

    def kill(self) -> None:
        self.up = False
        self.adapters.clear()
        self.weight_version = "default"

    def _check_up(self) -> None:
        if not self.up:
            raise EngineError("engine does not answer")

    async def info(self) -> EngineInfo:
        self.num_asked += 1
        self._check_up()
        return await super().info()

    async def stream(self, request: GenerateRequest):
        self._check_up()
        async for result in super().stream(request):
            if len(result.output_ids) == self.dies_after:
                self.kill()
            self._check_up()
            yield result


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Mortal]:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.0)
    return [Mortal(), Mortal()]


@pytest.fixture
def fleet(engines: list[Mortal]) -> EngineFleet:
    return EngineFleet([("first", engines[0]), ("second", engines[1])])


def ask(num: int = 4, **fields: str) -> GenerateRequest:
    return GenerateRequest((1, 20, 21), Sampling(max_new_tokens=num), **fields)


async def test_the_preferred_engine_answers(fleet: EngineFleet, engines: list[Mortal]) -> None:
    await asyncio.gather(*(fleet.generate(ask()) for _ in range(3)))
    assert [engine.num_requests for engine in engines] == [3, 0]
    assert engines[0].num_asked <= 3


async def test_those_who_come_at_once_wait_for_one_question(engines: list[Mortal]) -> None:
    class Slow(Mortal):
        async def info(self) -> EngineInfo:
            await asyncio.sleep(0.05)
            return await super().info()

    slow = Slow()
    fleet = EngineFleet([("slow", slow), ("second", engines[1])])
    await asyncio.gather(*(fleet.generate(ask()) for _ in range(20)))
    assert (slow.num_asked, slow.num_requests, engines[1].num_requests) == (1, 20, 0)


@pytest.mark.parametrize("after", [-1, 2])
async def test_a_request_of_an_engine_that_dies_is_answered_by_the_next(
    fleet: EngineFleet, engines: list[Mortal], after: int
) -> None:
    await fleet.generate(ask())
    engines[0].dies_after = after
    if after < 0:
        engines[0].kill()
    result = await fleet.generate(ask())
    assert len(result.output_ids) == len(result.logprobs) == 4
    assert engines[1].num_requests == 1


async def test_a_stream_that_has_begun_is_not_continued_elsewhere(fleet: EngineFleet, engines: list[Mortal]) -> None:
    engines[0].dies_after = 2
    seen: list[GenerateResult] = []
    with pytest.raises(EngineError, match="does not answer"):
        async for result in fleet.stream(ask()):
            seen.append(result)
    assert len(seen) == 1
    assert len([result async for result in fleet.stream(ask())]) == 4, "the next one is the other engine's"


async def test_an_engine_comes_back_only_with_the_version(
    fleet: EngineFleet, engines: list[Mortal], tmp_path: Path
) -> None:
    folder = str(make_adapter(tmp_path / "a"))
    await fleet.load_adapter("r@v1", folder)
    await fleet.generate(ask(adapter="r@v1"))
    engines[0].kill()
    await fleet.generate(ask(adapter="r@v1"))
    engines[0].up = True  # restarted: without the adapter
    await fleet.generate(ask(adapter="r@v1"))
    assert engines[0].num_requests == 1
    await engines[0].load_adapter("r@v1", folder)
    await fleet.generate(ask(adapter="r@v1"))
    assert [engine.num_requests for engine in engines] == [2, 2]


async def test_an_engine_with_other_weights_is_not_asked(fleet: EngineFleet, engines: list[Mortal]) -> None:
    engines[1].weight_version = "run-1.a1@v2"
    result = await fleet.generate(ask(weights="run-1.a1@v2"))
    assert result.spans == [VersionSpan("2", 0, 4)]
    assert [engine.num_requests for engine in engines] == [0, 1]


async def test_weights_that_changed_unnoticed_are_refused(engines: list[Mortal]) -> None:
    """Restarted between the confirmation and the request: its answer is not taken for the version's."""
    fleet = EngineFleet([("first", engines[0])])
    engines[0].weight_version = "run-1.a1@v2"
    await fleet.confirm(weights="run-1.a1@v2")
    engines[0].weight_version = "default"
    with pytest.raises(EngineError, match="restarted"):
        await fleet.generate(ask(weights="run-1.a1@v2"))


async def test_when_nobody_can_serve_everybody_is_named(fleet: EngineFleet, engines: list[Mortal]) -> None:
    engines[1].kill()
    with pytest.raises(EngineError, match=r"first does not hold adapter r@v1; .*does not answer"):
        await fleet.generate(ask(adapter="r@v1"))
    with pytest.raises(EngineError, match="no engine is known"):
        await EngineFleet([]).generate(ask())


async def test_a_bad_request_is_not_put_to_everybody(fleet: EngineFleet, engines: list[Mortal]) -> None:
    with pytest.raises(EngineError, match="vocabulary"):
        await fleet.generate(GenerateRequest((10**9,), Sampling(max_new_tokens=1)))
    assert [engine.num_requests for engine in engines] == [0, 0]


async def test_control_reaches_every_engine_and_failures_are_named(
    fleet: EngineFleet, engines: list[Mortal], tmp_path: Path
) -> None:
    await fleet.load_adapter("a", str(make_adapter(tmp_path / "a")))
    assert (await fleet.info()).adapters == ("a",)
    await engines[1].unload_adapter("a")
    assert (await fleet.info()).adapters == ()
    with pytest.raises(WorkerError, match="not loaded"):
        await fleet.unload_adapter("a")
    assert engines[0].adapters == {}
    engines[1].weight_version = "other"
    with pytest.raises(EngineError, match=r"different weights \(first: default, second: other\)"):
        await fleet.info()


async def test_metrics_are_sums_and_means(fleet: EngineFleet, engines: list[Mortal]) -> None:
    for engine in engines:
        await engine.generate(ask())
    assert (await fleet.metrics())["sglang:generation_tokens_total"] == 8
    assert (await fleet.token_gaps())[float("inf")] == 8
    assert await fleet.healthy()


async def test_the_router_is_asked_only_when_every_engine_holds_the_version(
    engines: list[Mortal], tmp_path: Path
) -> None:
    router = ScriptedEngine()
    fleet = EngineFleet([("first", engines[0]), ("second", engines[1])], router=router)
    await fleet.generate(ask())
    assert (router.num_requests, engines[0].num_requests) == (1, 0)
    folder = str(make_adapter(tmp_path / "a"))
    await router.load_adapter("a", folder)
    await engines[0].load_adapter("a", folder)
    with pytest.raises(EngineError, match="second does not hold adapter a"):
        await fleet.generate(ask(adapter="a"))
    await engines[1].load_adapter("a", folder)
    await fleet.generate(ask(adapter="a"))
    assert router.num_requests == 2


async def test_an_abort_finds_its_request_wherever_it_is(engines: list[Mortal]) -> None:
    for engine in engines:
        engine.token_seconds = 0.001
    fleet = EngineFleet([("first", engines[0]), ("second", engines[1])])
    task = asyncio.create_task(engines[1].generate(ask(900, request_id="r")))
    while not engines[1].num_tokens:
        await asyncio.sleep(0.001)
    engines[0].kill()
    await fleet.abort("r")
    assert (await asyncio.wait_for(task, 30)).finish_reason == "abort"


@pytest.mark.parametrize(
    ("weights", "wanted", "served"),
    [
        ("run-1.a1@v2", "run-1.a1@v2", True),
        ("run-1.a1@v3", "run-1.a1@v2", True),
        ("run-1.a1@v1", "run-1.a1@v2", False),
        ("run-1.a2@v2", "run-1.a1@v2", False),
        ("run-1.a2@v3", "run-1.a1@v2", True),
        ("run-1.a1@v1", "run-1.a0@v0", True),
        ("run-1.a1@v3", "run-1.a2@v2", False),
        ("run-2.a2@v3", "run-1.a1@v2", False),
        ("run-1.a1@v10", "run-1.a1@v9", True),
        ("default", "run-1.a1@v0", False),
        ("policy-ab", "policy-ab", True),
        ("policy-abc", "policy-ab", False),
        ("@vx", "@v1", False),
    ],
)
def test_which_weights_may_answer(weights: str, wanted: str, served: bool) -> None:
    assert is_served(weights, wanted) is served


def test_tokens_whose_weights_are_not_told_are_refused() -> None:
    request = ask(weights="run-1.a1@v1")
    spans = [VersionSpan("run-1.a1@v1", 0, 2), VersionSpan("run-1.a1@v2", 2, 3)]
    whole = GenerateResult([1, 2, 3], [0.0] * 3, "stop", spans)
    assert [s.version for s in check_versions(whole, request).spans] == ["1", "2"]
    for broken in ([], spans[:1], spans[1:], [spans[0], VersionSpan("default", 2, 3)]):
        with pytest.raises(EngineError):
            check_versions(GenerateResult([1, 2, 3], [0.0] * 3, "stop", broken), request)
    assert check_versions(GenerateResult([1], [0.0], "stop"), ask()).spans == []
