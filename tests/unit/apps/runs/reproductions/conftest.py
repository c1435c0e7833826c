"""A world with a rollout worker that answers in the test's own process."""

import asyncio
from collections import deque
from pathlib import Path

import pytest

from apps.runs import messaging
from gpu_workers import jobs
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.settings import load_settings
from tests.support.reproductions import Plane
from tests.support.worlds import make_world


@pytest.fixture
def plane(db, settings, tmp_path: Path, monkeypatch) -> Plane:
    try:
        asyncio.run(jobs.sandbox_backend().probe())
    except WorkerError as error:
        pytest.skip(str(error))
    made = Plane(make_world(), deque(), [])
    monkeypatch.setattr(messaging, "send_reproduce", made.sent.append)
    worker = load_settings({"RATCHET_HOME": str(tmp_path), "OBJECT_STORE_URL": settings.OBJECT_STORE_URL})
    monkeypatch.setattr(jobs, "settings", lambda: worker)
    monkeypatch.setattr(jobs, "reporter", lambda: type("Reporter", (), {"send": lambda _, r: made.reports.append(r)})())
    jobs.load_task.cache_clear()
    return made
