"""Checkpoint folders: complete and whole, or refused with what to do."""

from pathlib import Path

import msgspec
import pytest
import torch

from gpu_workers.contracts.checkpoints import Identity, version_key, version_name
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.checkpoints import CheckpointError, TrainerState
from gpu_workers.trainer.sharded import save_sharded
from gpu_workers.trainer.world import ALONE

IDENTITY = Identity(run_id="r", attempt=2, version=3, spec_hash="s" * 64, base_fingerprint="b" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    state = TrainerState(version=3, batch_ids=["a"], num_updates=3, num_skipped_updates=0, random_states={})
    save_sharded(tmp_path / "state", {"master.x": torch.arange(3.0)}, ALONE)
    checkpoints.write_trainer(tmp_path, state)
    checkpoints.seal(tmp_path, IDENTITY)
    return tmp_path


def test_a_whole_checkpoint_passes(folder: Path):
    manifest = checkpoints.check_folder(folder, spec_hash="s" * 64, base_fingerprint="b" * 64)
    assert manifest.identity == IDENTITY
    assert checkpoints.read_trainer(folder).batch_ids == ["a"]
    assert any(name.endswith(".safetensors") for name in manifest.files if name.startswith("state/"))


def test_without_its_manifest_it_does_not_count(folder: Path):
    (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        checkpoints.check_folder(folder)


def test_a_torn_manifest_is_refused(folder: Path):
    data = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoints.check_folder(folder)


@pytest.mark.parametrize("said", ["b" * 64, "s" * 64, '"format": 2', '"version": 3'])
def test_one_wrong_character_of_the_manifest_is_damage_and_no_foreign_checkpoint(folder: Path, said: str):
    path = folder / "manifest.json"
    text = path.read_text()
    assert said in text
    path.write_text(text.replace(said, said[:-1] + chr(ord(said[-1]) ^ 1), 1))
    with pytest.raises(checkpoints.DamagedCheckpoint, match=r"manifest\.json is damaged"):
        checkpoints.check_folder(folder, spec_hash="s" * 64, base_fingerprint="b" * 64)


def test_a_manifest_from_before_it_had_a_digest_passes(folder: Path):
    path = folder / "manifest.json"
    stored = msgspec.json.decode(path.read_bytes())
    del stored["digest"]
    path.write_bytes(msgspec.json.encode(stored))
    assert checkpoints.check_folder(folder, spec_hash="s" * 64, base_fingerprint="b" * 64).identity == IDENTITY


SHARD = "state/shard-00001-model-00001-of-00001.safetensors"


@pytest.mark.parametrize("name", [SHARD, "state/trainer.json", "adapter/adapter_model.safetensors"])
def test_damage_anywhere_is_refused_naming_the_file(folder: Path, name: str):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        checkpoints.check_folder(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        checkpoints.check_folder(folder)


def test_one_part_can_be_checked_alone(folder: Path):
    (folder / SHARD).unlink()
    checkpoints.check_folder(folder, part="adapter")
    with pytest.raises(CheckpointError):
        checkpoints.check_folder(folder, part="state")


@pytest.mark.parametrize("number", [1, 99])
def test_another_format_is_refused_with_what_to_do(folder: Path, number: int):
    manifest = checkpoints.read_manifest(folder)
    other = msgspec.structs.replace(manifest, format=number, digest="")
    (folder / "manifest.json").write_bytes(msgspec.json.encode(other))
    with pytest.raises(CheckpointError, match=f"format {number}, this trainer resumes 2: retry the run") as refused:
        checkpoints.check_folder(folder)
    assert not isinstance(refused.value, checkpoints.DamagedCheckpoint)  # older ones would be no better


def test_names_carry_the_attempt():
    assert version_name("7f", 2, 13) == "run-7f.a2@v13"
    assert version_key("7f", 2, 13) == "runs/7f/a2/v000013"
