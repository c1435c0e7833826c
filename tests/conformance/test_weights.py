"""One suite for every WeightTransfer: the fake, adapter push, full weights from disk, disk-delta, peer-to-peer and
broadcast, to scripted and to embedded engines and, with `make test-sglang`, to a real SGLang."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gpu_workers.contracts.messages import AdapterInstall, Sampling
from gpu_workers.contracts.seams import GenerateRequest, RolloutEngine, WeightTransfer, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description
from gpu_workers.weights.adapter import AdapterTransfer
from gpu_workers.weights.broadcast import BroadcastTransfer
from gpu_workers.weights.delta.publisher import DeltaPublisher
from gpu_workers.weights.delta.transfer import DeltaTransfer
from gpu_workers.weights.full import FullTransfer
from gpu_workers.weights.peer.transfer import PeerTransfer
from gpu_workers.weights.scripted import ScriptedTransfer
from gpu_workers.weights.sender import close_kept
from tests.sglang import server
from tests.support.engine_process import engine_process
from tests.support.transfers import Case
from tests.unit.gpu_workers.engines.serving import make_adapter, serving

ENGINES = ["scripted", "embedded", *(["sglang"] if server.FOLDER else [])]
PEER = ("peer",) if importlib.util.find_spec("mooncake") else ()  # requirements-peer.txt
KINDS = [
    "fake",
    *(f"{way}-{engine}" for engine in ENGINES for way in ("adapter", "full", "delta", *PEER)),
    *(f"broadcast-{engine}" for engine in ENGINES if engine != "scripted"),  # a fake is no member of a process group
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return server.model()


@pytest.fixture(scope="module")
def embedded_urls(model: Path) -> Iterator[list[str]]:
    with serving(model) as (first, _), serving(model) as (second, _):
        yield [first, second]


@pytest.fixture(scope="module")
def apart_urls(model: Path, embedded_urls: list[str]) -> Iterator[list[str]]:
    """Each in a process of its own, as members of a process group are."""
    with engine_process(model) as other:
        yield [embedded_urls[0], other.url]
    close_kept()


@pytest.fixture(scope="module")
def sglang_urls(smollm2: Path) -> Iterator[list[str]]:
    with server.sglang(smollm2) as url:
        yield [url]


@pytest.fixture(params=KINDS)
async def case(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> AsyncIterator[Case]:
    store, cache = ObjectStore(f"file://{tmp_path / 'store'}"), tmp_path / "cache"
    fingerprint = read_description(model).fingerprint
    if request.param == "fake":
        fake = ScriptedTransfer(["a", "b"], store, cache, fingerprint=fingerprint)

        async def noted() -> list[set[str]]:
            return [set(names) for names in fake.held.values()]

        yield Case(fake, store, [], model, noted)
        return
    way, _, kind = request.param.partition("-")
    engines: list[tuple[str, RolloutEngine]]
    if kind == "scripted":
        engines = [(name, ScriptedEngine(fingerprint=fingerprint, model_path=str(model))) for name in ("a", "b")]
    else:
        urls = "apart_urls" if request.param == "broadcast-embedded" else f"{kind}_urls"
        engines = [(url, SGLangEngine(url)) for url in request.getfixturevalue(urls)]
    served = request.getfixturevalue("smollm2") if kind == "sglang" else model

    async def held() -> list[set[str]]:
        infos = [await engine.info() for _, engine in engines]
        if way == "adapter":
            return [set(info.adapters) for info in infos]
        return [{info.weight_version} - {"default"} for info in infos]

    kinds: dict[str, Callable[..., WeightTransfer]] = {
        "adapter": AdapterTransfer,
        "full": FullTransfer,
        "delta": DeltaTransfer,
        "peer": PeerTransfer,
        "broadcast": partial(BroadcastTransfer, base=served, address="127.0.0.1", bucket_bytes=1 << 27),
    }
    transfer = kinds[way](engines, store, cache)
    deltas = DeltaPublisher(tmp_path / "chain", snapshot_every=10) if way == "delta" else None
    shapes = json.loads((served / "config.json").read_text())
    clients = [engine for _, engine in engines]
    adapter = partial(make_adapter, model=shapes)
    yield Case(transfer, store, clients, served, held, way != "adapter", adapter, deltas)
    for engine in clients:
        await engine.resume()
        info = await engine.info()
        for name in info.adapters:
            await engine.unload_adapter(name)
        if info.weight_version != "default":
            await engine.update_weights(str(served), "default")
        await engine.close()


def ask(case: Case, item: AdapterInstall | None = None, *, num: int = 6) -> GenerateRequest:
    name = item.name if item else ""
    sampling = Sampling(max_new_tokens=num, temperature=0.0)
    where = {"weights": name} if case.full else {"adapter": name}
    return GenerateRequest((30, 40, 50, 60), sampling, **where)


async def test_installed_on_every_engine_and_reported(case: Case, tmp_path: Path) -> None:
    first, second = case.publish(tmp_path / "1", 1), case.publish(tmp_path / "2", 2)
    report = await case.transfer.install([first, second], [], base_fingerprint=case.fingerprint)
    assert report.ok
    assert report.installed == ([second.name] if case.full else [first.name, second.name])
    held = await case.held()
    assert len(report.engines) == len(held)
    assert report.num_bytes > 0
    assert held == [set(report.installed)] * len(held)
    if case.deltas:
        assert report.density == 1.0, "from a snapshot"
    if case.full:
        assert report.pause_seconds is not None and 0 < report.pause_seconds <= report.duration_seconds


async def test_answers_change_with_the_version(case: Case, tmp_path: Path) -> None:
    """Log-probs and version, for every transfer; an earlier version's are the same when it is asked again."""
    if not case.engines:
        pytest.skip("the fake has no engines")
    engine = case.engines[0]
    base = await engine.generate(ask(case))
    answers = []
    for version in (1, 2):
        item = case.publish(tmp_path / str(version), version)
        report = await case.transfer.install([item], [])
        if case.deltas and version > 1:
            assert report.density is not None and 0 < report.density < 0.05
            assert report.num_bytes == (Path(case.store.path(item.uri)) / case.file).stat().st_size
        answers.append(await engine.generate(ask(case, item)))
        if case.full:
            assert [span.version for span in answers[-1].spans] == [str(version)]
    said = [(result.output_ids, result.logprobs) for result in (base, *answers)]
    assert said[0] != said[1] != said[2] != said[0]


async def test_what_runs_meanwhile_goes_on(case: Case, tmp_path: Path) -> None:
    if not case.engines:
        pytest.skip("the fake has no engines")
    item = case.publish(tmp_path / "1", 1)
    engine = case.engines[0]
    if isinstance(engine, ScriptedEngine):
        engine.token_seconds = 0.01
    stream = engine.stream(ask(case, num=60))
    async for result in stream:
        if result.output_ids:
            break

    async def rest():
        return [result async for result in stream][-1]

    running = asyncio.create_task(rest())
    await case.transfer.install([item], [])
    last = await asyncio.wait_for(running, 240)
    assert last.finish_reason in ("length", "stop")
    assert len(last.logprobs) == len(last.output_ids)
    versions = [span.version for span in last.spans]
    assert versions in ([["default"]] if not case.full else [["default"], ["default", item.name]])


async def test_retired_only_when_asked(case: Case, tmp_path: Path) -> None:
    if case.full:
        pytest.skip("the next version replaces the last: nothing is left to retire")
    first, second, third = (case.publish(tmp_path / str(version), version) for version in (1, 2, 3))
    await case.transfer.install([first, second], [])
    report = await case.transfer.install([third], [first.name, "never-there"])
    assert report.retired == [first.name]
    held = await case.held()
    assert held == [{second.name, third.name}] * len(held)


async def test_installing_again_changes_nothing(case: Case, tmp_path: Path) -> None:
    item = case.publish(tmp_path / "1", 1)
    await case.transfer.install([item], [])
    report = await case.transfer.install([item], [])
    assert report.installed == [item.name]
    assert report.pause_seconds is None or not case.full, "it was not paused for nothing"
    held = await case.held()
    assert held == [{item.name}] * len(held)


async def test_changed_bytes_are_refused(case: Case, tmp_path: Path) -> None:
    item = case.publish(tmp_path / "1", 1)
    path = Path(case.store.path(item.uri)) / case.file
    data = path.read_bytes()
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(WorkerError, match="digest") as refused:
            await case.transfer.install([item], [])
        assert not refused.value.retryable
    assert not any(await case.held())


async def test_a_missing_folder_or_file_is_refused(case: Case, tmp_path: Path) -> None:
    item = case.publish(tmp_path / "1", 1)
    (Path(case.store.path(item.uri)) / case.file).unlink()
    with pytest.raises(WorkerError, match="missing"):
        await case.transfer.install([item], [])
    with pytest.raises(WorkerError, match="missing"):
        await case.transfer.install([AdapterInstall(name="n", uri="runs/none", sha256="0" * 64)], [])
    assert not any(await case.held())


async def test_another_base_is_refused(case: Case, tmp_path: Path) -> None:
    foreign = case.publish(tmp_path / "1", 1, base="f" * 64)
    with pytest.raises(WorkerError, match="another base model"):
        await case.transfer.install([foreign], [], base_fingerprint=case.fingerprint)
    own = case.publish(tmp_path / "2", 2)
    with pytest.raises(WorkerError, match="another base model"):
        await case.transfer.install([own], [], base_fingerprint="e" * 64)
    assert not any(await case.held())
