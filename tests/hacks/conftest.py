"""The world of the hack suite, or a skip that says why this machine has no sandbox."""

import asyncio
from pathlib import Path

import pytest

from gpu_workers.contracts.seams import WorkerError
from tests.hacks.world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder: Path = tmp_path_factory.mktemp("hacks")
    made = World(folder)
    try:
        asyncio.run(made.backend.probe())
    except WorkerError as error:
        pytest.skip(str(error))
    return made
