"""Fixtures of the supervisor's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.services.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "home")
    yield machine
    machine.close()
    assert machine.living() == []
