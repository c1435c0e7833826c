"""What a trainer of all weights publishes: a chain that any host can follow, and checkpoints that resume exactly."""

import shutil
from pathlib import Path

import pytest

from gpu_workers.contracts.seams import Published
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.publishing import CheckpointPublisher
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.manifest import DELTA, MANIFEST, read_local
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec

FULL = {"trainer": {"update": "full"}, "optimiser": {"learning_rate": 1e-6, "warmup_steps": 0}}


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"file://{tmp_path / 'store'}")


def make(base: BaseModel, attempt: int = 1) -> PolicyTrainer:
    return PolicyTrainer(make_spec(**FULL), base, run_id="r", attempt=attempt)


def step(trainer: PolicyTrainer) -> None:
    trainer.step(f"b{trainer.version}", make_groups(trainer.version))


def model_folder(store: ObjectStore, published: Published) -> Path:
    return Path(store.path(published.adapter))


def wanted(trainer: PolicyTrainer, published: Published) -> Wanted:
    return Wanted(
        name=trainer.adapter_name,
        uri=published.adapter,
        sha256=published.sha256,
        base_fingerprint=trainer.base.fingerprint,
    )


def test_versions_are_whole_now_and_then_and_every_one_is_rebuilt(base: BaseModel, store: ObjectStore, tmp_path: Path):
    trainer = make(base)
    publisher = CheckpointPublisher(store, "r", 1, work=tmp_path / "work", snapshot_every=3)
    keeper = CheckpointKeeper(store, tmp_path / "cache")
    whole = []
    for _ in range(4):
        step(trainer)
        published = publisher.publish(trainer)
        folder = model_folder(store, published)
        whole.append((folder / WEIGHTS).exists())
        assert (folder / DELTA).exists() == (trainer.version > 1)
        checkpoints.check_folder(Path(store.path(published.checkpoint)))
        held = keeper.bring(wanted(trainer, published))
        assert file_sha256(Path(held.path) / WEIGHTS) == published.sha256
        assert {file.name for file in Path(held.path).iterdir()} >= {"config.json", "tokenizer.json", MANIFEST}
        assert published.num_bytes == (Path(held.path) / WEIGHTS).stat().st_size
    assert whole == [True, False, False, True]
    assert len(list((tmp_path / "work").rglob("*.safetensors"))) == 1, "one copy: of the version before"


def test_every_version_whole_with_the_change_beside_it(base: BaseModel, store: ObjectStore):
    trainer = make(base)
    publisher = CheckpointPublisher(store, "r", 1)
    for _ in range(2):
        step(trainer)
        published = publisher.publish(trainer)
        assert file_sha256(model_folder(store, published) / WEIGHTS) == published.sha256
    assert (model_folder(store, published) / DELTA).exists()


def test_a_resumed_attempt_begins_a_chain_of_its_own(base: BaseModel, store: ObjectStore, tmp_path: Path):
    first = make(base)
    publisher = CheckpointPublisher(store, "r", 1, work=tmp_path / "work", snapshot_every=100)
    published = []
    for _ in range(3):
        step(first)
        published.append(publisher.publish(first))
    keeper = CheckpointKeeper(store, tmp_path / "cache")
    keeper.bring(wanted(first, published[2]))
    second = make(base, attempt=2)
    second.load(Path(store.path(published[1].checkpoint)))
    (tmp_path / "work" / "left-by-the-killed-one").mkdir()
    publisher = CheckpointPublisher(store, "r", 2, work=tmp_path / "work", snapshot_every=100)
    assert not (tmp_path / "work").exists()
    step(second)
    again = publisher.publish(second)
    assert again.sha256 == published[2].sha256, "an exact resume"
    assert read_local(model_folder(store, again)).snapshot
    held = keeper.bring(wanted(second, again))
    assert (held.name, held.num_bytes) == (second.adapter_name, 0), "the same bytes under the new attempt's name"
    step(second)
    assert keeper.bring(wanted(second, publisher.publish(second))).density is not None


def test_a_cache_that_is_deleted_costs_a_snapshot(base: BaseModel, store: ObjectStore, tmp_path: Path):
    trainer = make(base)
    publisher = CheckpointPublisher(store, "r", 1, work=tmp_path / "work", snapshot_every=100)
    for _ in range(2):
        step(trainer)
        published = publisher.publish(trainer)
        assert read_local(model_folder(store, published)).snapshot
        shutil.rmtree(tmp_path / "work")


def test_adapters_are_published_as_before(base: BaseModel, store: ObjectStore, tmp_path: Path):
    trainer = PolicyTrainer(make_spec(), base, run_id="r", attempt=1)
    published = CheckpointPublisher(store, "r", 1, work=tmp_path / "work", snapshot_every=3).publish(trainer)
    assert {file.name for file in Path(store.path(published.adapter)).iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "manifest.json"
    }  # fmt: skip
