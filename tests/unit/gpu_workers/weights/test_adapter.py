"""Adapter push under trouble: engines that restart, lie, or load an adapter that cannot sample."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.weights.adapter import AdapterTransfer, InstallError
from tests.unit.gpu_workers.engines.serving import make_adapter


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path / 'store'}")


@pytest.fixture
def item(store: ObjectStore, tmp_path: Path) -> AdapterInstall:
    folder = make_adapter(tmp_path / "a")
    store.put_folder("runs/r/a1/v000001", folder)
    digest = hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()
    return AdapterInstall(name="r@v1", uri="runs/r/a1/v000001", sha256=digest)


class Forgetful(ScriptedEngine):
    """Takes an adapter and does not list it."""

    async def info(self) -> EngineInfo:
        return replace(await super().info(), adapters=())


class Infinite(ScriptedEngine):
    """Samples log-probs that are not finite under an adapter."""

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        async for result in super().stream(request):
            yield replace(result, logprobs=[float("nan")] * len(result.logprobs)) if request.adapter else result


async def test_a_restarted_engine_gets_its_adapters_again(
    store: ObjectStore, item: AdapterInstall, tmp_path: Path
) -> None:
    steady, restarted = ScriptedEngine(), ScriptedEngine()
    transfer = AdapterTransfer([("a", steady), ("b", restarted)], store, tmp_path)
    await transfer.install([item], [])
    restarted.adapters.clear()
    await transfer.install([item], [])
    assert (await restarted.info()).adapters == (await steady.info()).adapters == (item.name,)


async def test_read_back_is_believed_not_the_answer(store: ObjectStore, item: AdapterInstall, tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="does not list it"):
        await AdapterTransfer([("a", Forgetful())], store, tmp_path).install([item], [])


async def test_a_probe_that_is_not_finite_unloads(store: ObjectStore, item: AdapterInstall, tmp_path: Path) -> None:
    engine = Infinite()
    with pytest.raises(InstallError, match="not finite"):
        await AdapterTransfer([("a", engine)], store, tmp_path).install([item], [])
    assert engine.adapters == {}


async def test_an_engine_of_another_base_is_refused_before_loading(
    store: ObjectStore, item: AdapterInstall, tmp_path: Path
) -> None:
    engine = ScriptedEngine(fingerprint="a" * 64)
    with pytest.raises(WorkerError, match="serves another base model"):
        await AdapterTransfer([("a", engine)], store, tmp_path).install([item], [], base_fingerprint="b" * 64)
    assert engine.adapters == {}


async def test_a_full_engine_says_so(store: ObjectStore, item: AdapterInstall, tmp_path: Path) -> None:
    """An engine makes room by itself: what was pushed out again by the end was not installed."""
    other = AdapterInstall(name="r@v2", uri=item.uri, sha256=item.sha256)
    with pytest.raises(WorkerError, match=r"no longer lists r@v1"):
        await AdapterTransfer([("a", ScriptedEngine(max_adapters=1))], store, tmp_path).install([item, other], [])
