"""Fixtures of the data plane: the tiny model's folder; a bubblewrap backend."""

from pathlib import Path

import pytest

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.models import tiny
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose models/tiny is prepared."""
    home = tmp_path_factory.mktemp("tiny-home")
    tiny.prepare(home)
    return home


@pytest.fixture(scope="session")
def tiny_model(tiny_home: Path) -> Path:
    return tiny_home / "models" / tiny.NAME


@pytest.fixture
async def backend() -> BubblewrapBackend:
    """Skips with the reason where this machine has none."""
    made = BubblewrapBackend()
    try:
        await made.probe()
    except WorkerError as error:
        pytest.skip(str(error))
    return made
