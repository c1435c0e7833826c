"""A measurement plane with real sandboxes."""

import asyncio
from pathlib import Path

import pytest

from apps.tasks.measurements import messaging
from gpu_workers import jobs
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.settings import load_settings
from tests.support.measurements import Plane, function_tasks, imported


@pytest.fixture
def plane(project, sent, settings, tmp_path: Path, monkeypatch) -> Plane:
    try:
        asyncio.run(jobs.sandbox_backend().probe())
    except WorkerError as error:
        pytest.skip(str(error))
    made = Plane(imported(project, function_tasks(), slug="functions", verifier_kind=VerifierKind.PROGRAM))
    monkeypatch.setattr(messaging, "send_job", made.sent.append)
    worker = load_settings({"RATCHET_HOME": str(tmp_path), "OBJECT_STORE_URL": settings.OBJECT_STORE_URL})
    monkeypatch.setattr(jobs, "settings", lambda: worker)
    monkeypatch.setattr(jobs, "reporter", lambda: type("Reporter", (), {"send": lambda _, r: made.reports.append(r)})())
    jobs.load_task.cache_clear()
    return made
