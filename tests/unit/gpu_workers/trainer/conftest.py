"""The tiny model as the trainer's base, one thread."""

from pathlib import Path

import pytest
import torch

from gpu_workers.contracts.runspec import RunSpec
from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description
from gpu_workers.trainer.backend import BaseModel
from tests.unit.gpu_workers.trainer.synthetic import make_spec

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tiny.prepare(folder)
    return folder


@pytest.fixture
def base(home: Path) -> BaseModel:
    folder = home / "models" / tiny.NAME
    return BaseModel(tiny.NAME, folder, read_description(folder).fingerprint)


@pytest.fixture
def spec() -> RunSpec:
    return make_spec()
