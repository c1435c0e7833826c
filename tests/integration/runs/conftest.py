"""Fixtures of run tests: a world, a store of its own, and a scripted data plane."""

from collections.abc import Callable

import pytest

from tests.support.plane import ScriptedPlane
from tests.support.scripted import Chaos
from tests.support.worlds import World, make_world


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.OBJECT_STORE_URL = f"file://{tmp_path}/objects"


@pytest.fixture
def world(db) -> World:
    return make_world()


@pytest.fixture
def make_plane(monkeypatch) -> Callable[..., ScriptedPlane]:
    def make(seed: int = 0, **chaos: float) -> ScriptedPlane:
        plane = ScriptedPlane(seed, Chaos(**chaos))
        plane.install(monkeypatch)
        return plane

    return make
