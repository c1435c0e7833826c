"""A bubblewrap backend, or a skip that says why this machine has none."""

import pytest

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend


@pytest.fixture
async def backend():
    made = BubblewrapBackend()
    try:
        await made.probe()
    except WorkerError as error:
        pytest.skip(str(error))
    return made
