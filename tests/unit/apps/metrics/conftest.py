"""What tests of metrics share: a run of a world, a packed batch of points."""

import time
from collections.abc import Callable, Iterable

import pytest

from apps.metrics import journal
from apps.runs import messaging
from apps.runs.models import Run
from apps.runs.services import submit_run
from gpu_workers.contracts.points import PointBatch, pack_points
from tests.support.worlds import World, make_world, run_spec

Batch = Callable[..., PointBatch]


@pytest.fixture
def world(db, monkeypatch) -> World:
    for name in ("send_rollout", "send_train", "send_fleet", "put", "request_advance", "request_dataset"):
        monkeypatch.setattr(messaging, name, lambda *_, **__: None)
    return make_world()


@pytest.fixture
def run(world) -> Run:
    return submit_run(project=world.project, spec=run_spec(), by=world.engineer)


@pytest.fixture(autouse=True)
def no_series_met(monkeypatch) -> None:
    """Ids that another test's rolled-back run left in this process."""
    monkeypatch.setattr(journal, "_met", type(journal._met)())


@pytest.fixture
def batch(run) -> Batch:
    def make(seq: int, points: Iterable[tuple], **changes) -> PointBatch:
        now = time.time()
        rows = [(name, step, value, *(time_ or [now])) for name, step, value, *time_ in points]
        values = {"run_id": str(run.pk), "source": "worker", "seq": seq, "sent_at": now} | changes
        return PointBatch(**values, **pack_points(rows))

    return make
