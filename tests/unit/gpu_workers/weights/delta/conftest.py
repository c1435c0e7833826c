from collections.abc import Iterator

import pytest

from tests.unit.gpu_workers.weights.delta.workers import Workers


@pytest.fixture(scope="package")
def workers() -> Iterator[Workers]:
    started = Workers()
    yield started
    started.close()
