"""The suite with planted faults, checked and ready, and workers in the test's own process."""

import asyncio
from pathlib import Path

import pytest

from apps.tasks.reports import messaging
from apps.tasks.services import apply_checks, import_suite
from gpu_workers import jobs
from gpu_workers.contracts.messages import TaskCheck
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.settings import load_settings
from tests.support.suite_reports import Plane, suite_tasks
from tests.unit.apps.tasks.conftest import make_definition


@pytest.fixture
def plane(project, sent, settings, tmp_path: Path, monkeypatch) -> Plane:
    try:
        asyncio.run(jobs.sandbox_backend().probe())
    except WorkerError as error:
        pytest.skip(str(error))
    suite = import_suite(project=project, definition=make_definition(), tasks=suite_tasks(), by=None)
    checks = [TaskCheck(task_id=str(pk), ok=True) for pk in suite.tasks.values_list("pk", flat=True)]
    apply_checks(suite_id=suite.pk, checks=checks)
    suite.refresh_from_db()
    suite.reports.all().delete()  # the one that a suite gets by itself: tests ask for their own
    made = Plane(suite)
    monkeypatch.setattr(messaging, "request_compute", made.computes.append)
    monkeypatch.setattr(messaging, "request_finish", made.finishes.append)
    monkeypatch.setattr(messaging, "send_probes", made.probes.append)
    worker = load_settings({"RATCHET_HOME": str(tmp_path), "OBJECT_STORE_URL": settings.OBJECT_STORE_URL})
    monkeypatch.setattr(jobs, "settings", lambda: worker)
    monkeypatch.setattr(jobs, "reporter", lambda: type("Reporter", (), {"send": lambda _, r: made.reports.append(r)})())
    jobs.load_task.cache_clear()
    return made
