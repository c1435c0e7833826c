"""Writers at the same time: one unbroken chain."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from apps.accounts.models import Project
from apps.audit.models import AuditEvent
from apps.audit.services import record
from apps.audit.verification import verify_chain


@pytest.mark.django_db(transaction=True)
def test_parallel_writers_make_one_chain():
    project = Project.objects.create(slug="busy", title="Busy")

    def write(worker: int) -> None:
        try:
            for number in range(10):
                record(tag="system:run:note", by=None, project=project, subject=project, after={"n": [worker, number]})
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    report = verify_chain(project)
    assert (report.ok, report.num_events) == (True, 40)
    assert AuditEvent.objects.filter(project_id=project.pk).count() == 40
