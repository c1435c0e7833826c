"""Fixtures of the data plane: the tiny model's folder."""

from pathlib import Path

import pytest

from gpu_workers.models import tiny


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose models/tiny is prepared."""
    home = tmp_path_factory.mktemp("tiny-home")
    tiny.prepare(home)
    return home


@pytest.fixture(scope="session")
def tiny_model(tiny_home: Path) -> Path:
    return tiny_home / "models" / tiny.NAME
