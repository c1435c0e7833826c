"""One suite for every TrainerBackend: the scripted fake and the LoRA trainer on the tiny model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpu_workers.contracts.seams import TrainerBackend
from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.checkpoints import CheckpointError, check_folder
from gpu_workers.trainer.scripted import ScriptedTrainer
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec

torch.set_num_threads(1)
Make = Callable[[], TrainerBackend]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tiny.prepare(folder)
    return folder


@pytest.fixture(params=["scripted", "lora"])
def make(request: pytest.FixtureRequest, home: Path) -> Make:
    if request.param == "scripted":
        return ScriptedTrainer
    folder = home / "models" / tiny.NAME
    base = BaseModel(tiny.NAME, folder, read_description(folder).fingerprint)
    return lambda: PolicyTrainer(make_spec(), base)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_each_batch_is_one_version_with_metrics(make: Make):
    trainer = make()
    assert trainer.version == 0
    for number in range(3):
        metrics, skipped = trainer.step(f"b{number}", make_groups(number))
        assert trainer.version == number + 1
        assert skipped == {}
        assert all(name.startswith("train/") and isinstance(value, float) for name, value in metrics.items())
        assert metrics["train/reward_mean"] == pytest.approx(0.5)
        assert metrics["train/num_sampled_tokens"] > 0


def test_groups_that_cannot_teach_are_named(make: Make):
    good = make_groups(0, num_groups=1)
    flat = make_groups(1, num_groups=1, size=1)
    _, skipped = make().step("b0", [*good, *flat])
    assert set(skipped) == {flat[0].group_id}
    assert skipped[flat[0].group_id] == "too_few_scored"


def test_a_checkpoint_is_whole_and_holds_an_adapter_and_a_state(make: Make, tmp_path: Path):
    trainer = make()
    trainer.step("b0", make_groups(0))
    trainer.save(tmp_path)
    assert check_folder(tmp_path).identity.version == 1
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()


def test_resuming_is_exact(make: Make, tmp_path: Path):
    straight = make()
    for number in range(3):
        straight.step(f"b{number}", make_groups(number))
        if number == 0:
            straight.save(tmp_path / "one")
    resumed = make()
    resumed.load(tmp_path / "one")
    assert resumed.version == 1
    for number in (1, 2):
        resumed.step(f"b{number}", make_groups(number))
    straight.save(tmp_path / "straight")
    resumed.save(tmp_path / "resumed")
    assert contents(tmp_path / "straight") == contents(tmp_path / "resumed")


def test_a_torn_checkpoint_is_refused_and_nothing_changes(make: Make, tmp_path: Path):
    trainer = make()
    trainer.step("b0", make_groups(0))
    trainer.save(tmp_path)
    for name in ("manifest.json", "state/trainer.json"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-3])
        other = make()
        with pytest.raises(CheckpointError):
            other.load(tmp_path)
        assert other.version == 0
        (tmp_path / name).write_bytes(data)
    other.load(tmp_path)
    assert other.version == 1
