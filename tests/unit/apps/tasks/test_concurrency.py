"""Imports and reports at the same time: one version, one end of the checks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from apps.accounts.models import Project
from apps.audit.models import AuditEvent
from apps.tasks.models import Suite, SuiteState
from apps.tasks.services import apply_checks, import_suite
from apps.tasks.suites import toolbox
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.messages import TaskCheck

pytestmark = pytest.mark.django_db(transaction=True)


def in_parallel(work, items) -> list:
    def run(item):
        try:
            return work(item)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(run, items))


def test_the_same_suite_imported_at_once_is_one_version_and_finished_once(sent):
    project = Project.objects.create(slug="busy", title="Busy")
    definition, tasks = toolbox.build(sizes={Split.TRAIN: 7, Split.HELDOUT: 7})
    suites = in_parallel(lambda _: import_suite(project=project, definition=definition, tasks=tasks, by=None), range(4))
    assert len({suite.pk for suite in suites}) == Suite.objects.count() == 1
    assert len(sent) == 1

    checks = [TaskCheck(task_id=str(task.pk), ok=True) for task in suites[0].tasks.all()]
    parts = [checks[:4], checks[4:8], checks[8:], checks]
    in_parallel(lambda part: apply_checks(suite_id=suites[0].pk, checks=part), parts)
    assert Suite.objects.get().state == SuiteState.READY
    assert AuditEvent.objects.filter(tag="system:suite:check").count() == 1
