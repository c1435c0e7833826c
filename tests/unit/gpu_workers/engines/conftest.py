"""Engines of the tiny model, started for one test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.models import tiny
from gpu_workers.models.folder import write_json
from tests.unit.gpu_workers.engines.serving import make_engine

Start = Callable[..., Engine]


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model without an end token: answers end by length only."""
    model = tiny.prepare(tmp_path_factory.mktemp("endless"))
    write_json(model / "generation_config.json", {"eos_token_id": []})
    return model


@pytest.fixture
def start(endless_model: Path) -> Iterator[Start]:
    """Start an engine with options; it is stopped after the test and must not have failed."""
    engines: list[Engine] = []

    def start_engine(*options: str) -> Engine:
        engine = make_engine(endless_model, *options)
        engine.start()
        engines.append(engine)
        return engine

    yield start_engine
    for engine in engines:
        engine.stop()
        assert engine.failure == ""
