"""A measurement from request to candidates: stored once, sent again when lost, refused where it has no sense."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from apps.audit.models import AuditEvent
from apps.runs.services.reports import ingest_report
from apps.tasks import jobs as task_jobs
from apps.tasks.measurements.models import MeasuredCandidate, VerifierMeasurement
from apps.tasks.measurements.selectors import outcomes_of
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.measurements import TaskMeasured, TasksMeasured
from gpu_workers.contracts.messages import Report
from ratchet.problems import Problem
from tests.support.evaluations import committed
from tests.support.measurements import Plane, imported
from tests.unit.apps.tasks.conftest import make_task


def test_end_to_end_through_a_real_sandbox(plane: Plane, engineer):
    measurement = plane.request(by=engineer, per_task=6, num_inputs=40)
    assert (measurement.state, measurement.num_tasks) == ("running", 2)
    plane.work()
    measurement.refresh_from_db()
    assert (measurement.state, measurement.num_measured) == ("ready", 2)
    assert len(measurement.verifier_hash) == 64
    assert measurement.status_message == "12 candidates on 2 tasks."
    found = [(o.verdict, o.truth) for o in outcomes_of(measurement)]
    assert found.count(("pass", "wrong")) == 2, "on each task the test never asks for the second argument"
    assert ("fail", "wrong") in found and ("pass", "right") in found
    false_pass = MeasuredCandidate.objects.filter(verdict="pass", truth="wrong").first()
    assert false_pass.expected != false_pass.got == "None" and "return None" in false_pass.text
    assert list(AuditEvent.objects.filter(tag__contains="measure").order_by("pk").values_list("tag", flat=True)) == [
        "user:verifier:measure", "system:verifier:measure",
    ]  # fmt: skip


def test_the_same_choices_are_measured_once(plane: Plane):
    first = plane.request(per_task=1, num_inputs=10)
    assert plane.request(per_task=2) == first, "one at a time"
    plane.work()
    assert plane.request(per_task=1, num_inputs=10) == first
    second = plane.measure(per_task=1, num_inputs=10, seed=2)
    assert second != first
    third = plane.measure(per_task=1, num_inputs=10, max_tasks=1)
    assert third.num_tasks == 1 and third.tasks.count() == 1


@pytest.mark.parametrize(
    ("options", "path"),
    [({"per_task": 0}, "per_task"), ({"seed": "x"}, "seed"), ({"num_inputs": 10**6}, "num_inputs"), ({"a": 1}, "a")],
)
def test_options_that_cannot_be_used_are_named(plane: Plane, options, path):
    with pytest.raises(Problem) as refused:
        plane.request(**options)
    assert refused.value.status == 400 and refused.value.errors[0]["path"] == path
    assert VerifierMeasurement.objects.count() == 0


def test_who_may_start_one(plane: Plane, viewer, reviewer, stranger):
    for user in (viewer, reviewer, stranger):
        with pytest.raises(Problem) as refused:
            plane.request(by=user)
        assert refused.value.status in (403, 404)


def test_suites_of_other_tasks_are_refused(plane: Plane, project):
    plane.suite = imported(project, [make_task("n", "1 + 2?"), make_task("m", "0 + 3?", Split.HELDOUT)], slug="numbers")
    with pytest.raises(Problem) as refused:
        plane.request()
    assert refused.value.status == 409 and "Python function" in refused.value.detail


def test_a_part_counts_once_and_foreign_ones_not_at_all(plane: Plane):
    measurement = plane.request(per_task=1, num_inputs=10)
    keys = [str(pk) for pk in measurement.tasks.values_list("task_id", flat=True)]

    def answer(*task_ids: str, measurement_id: str = str(measurement.pk)) -> str:
        tasks = [TaskMeasured(task_id=task_id, error="no sandbox") for task_id in task_ids]
        body = TasksMeasured(job_id="j", measurement_id=measurement_id, tasks=tasks)
        with committed():
            return ingest_report(jsonable(Report(report_id=str(uuid4()), kind="measured", body=jsonable(body))))

    assert "unknown measurement" in answer(keys[0], measurement_id=str(uuid4()))
    assert "unknown measurement" in answer(keys[0], measurement_id="x")
    assert answer(keys[0], str(uuid4())) == "stored"
    assert "stored already" in answer(keys[0])
    measurement.refresh_from_db()
    assert (measurement.state, measurement.num_measured) == ("running", 1)
    assert answer(keys[1]) == "stored"
    measurement.refresh_from_db()
    assert measurement.state == "failed" and "no sandbox" in measurement.status_message
    assert "finished" in answer(keys[1])


def test_what_nobody_answered_is_sent_again(plane: Plane):
    measurement = plane.request(per_task=1, num_inputs=10)
    lost = plane.sent.popleft()

    def resend() -> None:
        with committed():
            task_jobs.resend_measurements()

    resend()
    assert not plane.sent, "too early"
    VerifierMeasurement.objects.update(active_at=timezone.now() - timedelta(hours=1))
    resend()
    again = plane.sent[0]
    assert again.items == lost.items and again.job_id != lost.job_id
    plane.work()
    measurement.refresh_from_db()
    assert measurement.state == "ready"
