"""The base model as a version: engines are brought back to exactly the weights that they began with."""

import shutil
from pathlib import Path

import pytest

from gpu_workers.contracts.messages import AdapterInstall, FleetJob, PolicyInstalled, Transfer
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models.folder import WEIGHTS, read_description
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.base import published_base
from gpu_workers.weights.delta.manifest import MANIFEST
from gpu_workers.weights.fleet import install_on_fleet
from tests.support.transfers import Case
from tests.unit.gpu_workers.engines.serving import serving

START = AdapterInstall(name="run-x.a0@v0", uri="", sha256="")


@pytest.fixture
def models(tiny_model: Path, tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(tiny_model)
    return tmp_path / "models"


@pytest.mark.parametrize("transfer", [Transfer.FULL, Transfer.DELTA])
async def test_engines_get_the_base_model_back(
    tiny_model: Path, models: Path, tmp_path: Path, transfer: Transfer
) -> None:
    store = ObjectStore(f"file://{tmp_path / 'objects'}")
    case = Case(None, store, [], tiny_model, None, full=True)  # type: ignore[arg-type]
    other = case.publish(tmp_path / "1", 1)

    async def install(item: AdapterInstall, how: Transfer) -> PolicyInstalled:
        job = FleetJob(job_id="j", base_model="tiny", install=[item], transfer=how)
        report = await install_on_fleet(job, store, models, tmp_path / "cache", [url])
        assert report.ok, report.message
        return report

    with serving(tiny_model) as (url, _):
        engine = SGLangEngine(url)
        first = await engine.weights_digest()
        await install(other, Transfer.FULL)
        assert await engine.weights_digest() != first
        report = await install(START, transfer)
        assert report.installed == [START.name] and report.num_bytes > 0
        assert (await engine.info()).weight_version == START.name
        assert await engine.weights_digest() == first
        again = await install(START, transfer)
        assert again.pause_seconds is None  # it has them
        await engine.close()
    assert store.exists(f"models/{read_description(tiny_model).fingerprint}/tokenizer.json")


def test_a_base_model_that_is_not_what_its_description_says_is_never_published(
    tiny_model: Path, tmp_path: Path
) -> None:
    store = ObjectStore(f"file://{tmp_path / 'objects'}")
    with pytest.raises(InstallError, match=r"those of the base model, but .* is not a prepared model"):
        published_base(store, tmp_path / "nowhere", tmp_path / "cache", START)
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_model, damaged)
    data = bytearray((damaged / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (damaged / WEIGHTS).write_bytes(data)
    with pytest.raises(InstallError, match="prepare the base model again"):
        published_base(store, damaged, tmp_path / "cache", START)
    assert not store.fs.exists(store.path("models"))


def test_a_base_model_that_was_published_itself_keeps_its_own_manifest(tiny_model: Path, tmp_path: Path) -> None:
    """Its files are linked, not copied, while it is put into the store."""
    store, base = ObjectStore(f"file://{tmp_path / 'objects'}"), tmp_path / "base"
    shutil.copytree(tiny_model, base)
    (base / MANIFEST).write_text("its own")
    item = published_base(store, base, tmp_path / "cache", START)
    assert (base / MANIFEST).read_text() == "its own"
    assert f"base-{item.sha256[:16]}" in store.get(f"{item.uri}/{MANIFEST}").decode()
