"""Weights that are read ahead of their update: read once, and only as long as their files are the same."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpu_workers.engines.embedded import staging
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import tiny
from tests.unit.gpu_workers.engines.serving import serving


class Served:
    """A client of a running engine, and the folders that the engine has read."""

    def __init__(self, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.read = SGLangEngine(url), list[str]()
        original = engine.read_model

        def read_model(path: str) -> object:
            self.read.append(path)
            return original(path)

        monkeypatch.setattr(engine, "read_model", read_model)


@pytest.fixture
async def served(endless_model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    with serving(endless_model) as (url, engine):
        served = Served(url, engine, monkeypatch)
        yield served
        await served.client.close()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tiny.prepare(tmp_path / "other", seed=1, name="other")


async def test_an_update_swaps_what_was_staged_in(served: Served, other: Path) -> None:
    assert await served.client.stage_weights(str(other))
    await served.client.update_weights(str(other), "v1")
    info = await served.client.info()
    assert (info.weight_version, info.model_path) == ("v1", str(other))
    assert served.read == [str(other)], "once, while generation could go on"
    await served.client.update_weights(str(other), "v2")
    assert served.read == [str(other)] * 2, "what was staged is used up"


async def test_files_that_changed_since_are_read_again(served: Served, other: Path, tmp_path: Path) -> None:
    before = await served.client.weights_digest()
    folder = tmp_path / "folder"
    shutil.copytree(other, folder)
    await served.client.stage_weights(str(folder))
    third = tiny.prepare(tmp_path / "third", seed=2, name="third")
    shutil.copyfile(third / "model.safetensors", folder / "model.safetensors")
    await served.client.update_weights(str(folder), "v1")
    digest = await served.client.weights_digest()
    await served.client.update_weights(str(third), "v2")
    assert await served.client.weights_digest() == digest != before


async def test_another_folder_than_the_staged_one_is_read(served: Served, other: Path, endless_model: Path) -> None:
    digest = await served.client.weights_digest()
    await served.client.stage_weights(str(other))
    await served.client.update_weights(str(endless_model), "v1")
    assert await served.client.weights_digest() == digest


async def test_what_cannot_be_read_is_refused_and_forgets_what_was_staged(served: Served, other: Path) -> None:
    await served.client.stage_weights(str(other))
    with pytest.raises(EngineError, match=r"no \.safetensors file|config\.json") as refused:
        await served.client.stage_weights("/nonexistent")
    assert refused.value.status == 400
    await served.client.update_weights(str(other), "v1")
    assert served.read == [str(other), "/nonexistent", str(other)]


async def test_what_nobody_comes_for_is_forgotten(served: Served, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "KEEP_SECONDS", 0.01)
    await served.client.stage_weights(str(other))
    await asyncio.sleep(0.1)
    await served.client.update_weights(str(other), "v1")
    assert served.read == [str(other)] * 2
