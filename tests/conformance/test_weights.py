"""One suite for every WeightTransfer: the fake, and adapter push to scripted and to embedded engines."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import RolloutEngine, WeightTransfer, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description, write_json
from gpu_workers.weights.adapter import AdapterTransfer
from gpu_workers.weights.scripted import ScriptedTransfer
from tests.unit.gpu_workers.engines.serving import make_adapter, serving


@dataclass
class Case:
    """A transfer to a fleet of two, its store, and what each engine holds."""

    transfer: WeightTransfer
    store: ObjectStore
    held: Callable[[], Awaitable[list[set[str]]]]
    fingerprint: str


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def urls(model: Path) -> Iterator[list[str]]:
    with serving(model) as (first, _), serving(model) as (second, _):
        yield [first, second]


@pytest.fixture(params=["fake", "adapter-scripted", "adapter-embedded"])
async def case(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> AsyncIterator[Case]:
    store = ObjectStore(f"file://{tmp_path / 'store'}")
    fingerprint = read_description(model).fingerprint
    if request.param == "fake":
        fake = ScriptedTransfer(["a", "b"], store, tmp_path / "cache", fingerprint=fingerprint)

        async def noted() -> list[set[str]]:
            return [set(names) for names in fake.held.values()]

        yield Case(fake, store, noted, fingerprint)
        return
    engines: list[tuple[str, RolloutEngine]]
    if request.param == "adapter-scripted":
        engines = [(name, ScriptedEngine(fingerprint=fingerprint)) for name in ("a", "b")]
    else:
        engines = [(url, SGLangEngine(url)) for url in request.getfixturevalue("urls")]

    async def listed() -> list[set[str]]:
        return [set((await engine.info()).adapters) for _, engine in engines]

    yield Case(AdapterTransfer(engines, store, tmp_path / "cache"), store, listed, fingerprint)
    for _, engine in engines:
        for name in (await engine.info()).adapters:
            await engine.unload_adapter(name)
        await engine.close()


def publish(case: Case, tmp_path: Path, version: int, *, base: str | None = None) -> AdapterInstall:
    """A PEFT folder in the store, as the trainer leaves it."""
    folder = make_adapter(tmp_path / f"v{version}", seed=version)
    digest = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    manifest = {"version": version, "sha256": digest, "base_fingerprint": case.fingerprint if base is None else base}
    write_json(folder / "manifest.json", manifest)
    key = f"runs/r/a1/v{version:06d}"
    case.store.put_folder(key, folder)
    return AdapterInstall(name=f"run-r.a1@v{version}", uri=key, sha256=digest, version=version)


async def test_installed_on_every_engine_and_reported(case: Case, tmp_path: Path) -> None:
    first, second = publish(case, tmp_path, 1), publish(case, tmp_path, 2)
    report = await case.transfer.install([first, second], [], base_fingerprint=case.fingerprint)
    assert report.ok
    assert report.installed == [first.name, second.name]
    assert len(report.engines) == 2
    assert report.num_bytes > 0
    assert await case.held() == [{first.name, second.name}] * 2


async def test_retired_only_when_asked(case: Case, tmp_path: Path) -> None:
    first, second, third = (publish(case, tmp_path, version) for version in (1, 2, 3))
    await case.transfer.install([first, second], [])
    report = await case.transfer.install([third], [first.name, "never-there"])
    assert report.retired == [first.name]
    assert await case.held() == [{second.name, third.name}] * 2


async def test_installing_again_changes_nothing(case: Case, tmp_path: Path) -> None:
    item = publish(case, tmp_path, 1)
    await case.transfer.install([item], [])
    report = await case.transfer.install([item], [])
    assert report.installed == [item.name]
    assert await case.held() == [{item.name}] * 2


async def test_changed_bytes_are_refused(case: Case, tmp_path: Path) -> None:
    item = publish(case, tmp_path, 1)
    path = Path(case.store.path(item.uri)) / "adapter_model.safetensors"
    data = path.read_bytes()
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(WorkerError, match="digest") as refused:
            await case.transfer.install([item], [])
        assert not refused.value.retryable
    assert await case.held() == [set()] * 2


async def test_a_missing_folder_or_file_is_refused(case: Case, tmp_path: Path) -> None:
    item = publish(case, tmp_path, 1)
    (Path(case.store.path(item.uri)) / "adapter_model.safetensors").unlink()
    with pytest.raises(WorkerError, match="missing"):
        await case.transfer.install([item], [])
    with pytest.raises(WorkerError, match="missing"):
        await case.transfer.install([AdapterInstall(name="n", uri="runs/none", sha256="0" * 64)], [])
    assert await case.held() == [set()] * 2


async def test_another_base_is_refused(case: Case, tmp_path: Path) -> None:
    foreign = publish(case, tmp_path, 1, base="f" * 64)
    with pytest.raises(WorkerError, match="another base model"):
        await case.transfer.install([foreign], [], base_fingerprint=case.fingerprint)
    own = publish(case, tmp_path, 2, base="e" * 64)
    with pytest.raises(WorkerError, match="another base model"):
        await case.transfer.install([own], [], base_fingerprint="e" * 64)
    assert await case.held() == [set()] * 2
