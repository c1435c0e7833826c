"""Writes of measurements: start one, collect what workers measured, finish."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.tasks.measurements import messaging
from apps.tasks.measurements.models import (
    MeasuredCandidate,
    MeasuredTask,
    MeasurementState,
    Method,
    VerifierMeasurement,
)
from apps.tasks.measurements.options import MeasurementOptions, asks_for_function, draw_tasks, parse_options
from apps.tasks.models import Suite, Task, TaskState
from apps.tasks.selectors import load_bundle
from apps.tasks.suites.bfcl_corrections import compare_keys, key_answers, older_keys
from gpu_workers.contracts.measurements import (
    CHECK_VERSION,
    CandidateOutcome,
    MeasureItem,
    MeasureJob,
    TaskMeasured,
    TasksMeasured,
)
from ratchet.commits import after_commit
from ratchet.problems import Problem

CHUNK = 4  # tasks a message: seconds each
KEY_CHUNK = 100  # tasks whose verifier only compares texts
LOST_AFTER = timedelta(minutes=10)  # without any part sent or come back


@transaction.atomic
def request_measurement(
    *, suite: Suite, by: User | None, options: Mapping[str, Any] | None = None
) -> VerifierMeasurement:
    """Have the suite's verifier measured on mutants. The one under way is the answer, or one by the same choices in
    which no task is missing.

    Raises Problem 403 without the right to start measurements, 400 naming an option that is wrong, 409 where the
    suite's tasks do not ask for a function.
    """
    require(by, Permission.EVALUATION_CREATE, suite.project)
    chosen = parse_options(options or {})
    suite = _lock_suite(suite)
    if under_way := suite.measurements.filter(state=MeasurementState.RUNNING).first():
        return under_way
    tasks = draw_tasks(_usable(suite), chosen)
    same = suite.measurements.filter(
        state=MeasurementState.READY, method=Method.MUTANTS, options=_kept(chosen), num_tasks=len(tasks)
    ).first()
    if same is not None and not same.tasks.exclude(error="").exists():
        return same
    if not asks_for_function(load_bundle(tasks[0])):
        message = "Mutants need tasks that ask for one Python function and bring tests that call it, as HumanEval does."
        raise Problem("not_measurable", 409, message)
    items = [MeasureItem(task_id=str(task.pk), task=task.bundle, num_mutants=chosen.per_task) for task in tasks]
    return _start(suite, by, Method.MUTANTS, tasks, items, chosen)


@transaction.atomic
def measure_answer_key(*, suite: Suite, by: User | None, older: Path, label: str) -> VerifierMeasurement:
    """Measure an older answer key of a Berkeley function-calling suite; the suite's own key is taken as the truth.

    `older`: the folder of the older data files. Raises Problem as `request_measurement`, SuiteError where the folder
    cannot be read.
    """
    require(by, Permission.EVALUATION_CREATE, suite.project)
    if suite.source != "bfcl":
        raise Problem("not_measurable", 409, "Only suites imported from bfcl have older answer keys.")
    keys, changes = older_keys(older), compare_keys(older)
    suite = _lock_suite(suite)
    if under_way := suite.measurements.filter(state=MeasurementState.RUNNING).first():
        return under_way
    tasks, items = [], []
    for task in _usable(suite):
        if (old := keys.get(task.key)) is None:
            continue
        bundle = load_bundle(task)
        verifier = msgspec.structs.replace(bundle.verifier, expected=[old])
        answers = key_answers(old, bundle.verifier.expected[0])
        items.append(MeasureItem(task_id=str(task.pk), task=task.bundle, answers=answers, verifier=verifier))
        tasks.append(task)
    if not tasks:
        raise Problem("not_measurable", 409, f"No task of {suite} is in the older answer key.")
    facts = [msgspec.to_builtins(change) for change in changes]
    return _start(suite, by, Method.ANSWER_KEY, tasks, items, MeasurementOptions(), label=label, facts=facts)


@transaction.atomic
def apply_measured(body: TasksMeasured) -> str:
    """Store one part that a worker measured; the last one finishes. Returns the reason of refusal, or ""."""
    measurement = _lock(body.measurement_id)
    if measurement is None:
        return f"unknown measurement {body.measurement_id!r}"
    if measurement.state != MeasurementState.RUNNING:
        return "this measurement is finished"
    waiting = {str(row.task_id): row for row in measurement.tasks.filter(measured_at__isnull=True)}
    stored = 0
    for found in body.tasks:
        row = waiting.pop(found.task_id, None)
        if row is None:
            continue  # stored already, or no task of this measurement
        _store(row, found)
        measurement.verifier_hash = measurement.verifier_hash or found.verifier_hash
        stored += 1
    measurement.num_measured += stored
    measurement.active_at = timezone.now()
    measurement.status_message = f"{measurement.num_measured} of {measurement.num_tasks} tasks are measured."
    if not waiting:
        _finish(measurement)
    measurement.save()
    return "" if stored else "this part is stored already"


@transaction.atomic
def resend_measurements() -> int:
    """Send again what nobody has answered for long; returns the number of measurements."""
    late = VerifierMeasurement.objects.select_for_update(skip_locked=True, of=("self",)).filter(
        state=MeasurementState.RUNNING, active_at__lt=timezone.now() - LOST_AFTER
    )
    measurements = list(late)
    for measurement in measurements:
        measurement.active_at = timezone.now()
        measurement.save(update_fields=["active_at"])
        _send(measurement)
    return len(measurements)


def _start(
    suite: Suite, by: User | None, method: Method, tasks: Sequence[Task], items: Sequence[MeasureItem],
    options: MeasurementOptions, *, label: str = "", facts: Sequence[Any] = (),
) -> VerifierMeasurement:  # fmt: skip
    measurement = VerifierMeasurement.objects.create(
        suite=suite, method=method, label=label, verifier_kind=suite.verifier.get("kind", ""), seed=options.seed,
        options=_kept(options), facts=list(facts), num_tasks=len(tasks), created_by=by,
        status_message="Workers have not answered yet.",
    )  # fmt: skip
    MeasuredTask.objects.bulk_create(
        (MeasuredTask(measurement=measurement, task=task, item=msgspec.to_builtins(item))
         for task, item in zip(tasks, items, strict=True)),
        batch_size=500,
    )  # fmt: skip
    after = {
        "suite": str(suite), "measurement": str(measurement.pk), "method": str(method), "label": label,
        "options": measurement.options, "num_tasks": len(tasks),
    }  # fmt: skip
    record(tag="user:verifier:measure", by=by, project=suite.project, subject=suite, after=after)
    _send(measurement)
    return measurement


def _kept(options: MeasurementOptions) -> dict[str, Any]:
    return {**msgspec.to_builtins(options), "check_version": CHECK_VERSION}


def _send(measurement: VerifierMeasurement) -> None:
    """Every task without an answer, once the transaction is through."""
    rows = measurement.tasks.filter(measured_at__isnull=True).values_list("item", flat=True)
    items = msgspec.convert(list(rows), list[MeasureItem])
    stamp = int(measurement.active_at.timestamp() * 1000)  # what is sent again has a report of its own
    chunk = CHUNK if measurement.method == Method.MUTANTS else KEY_CHUNK
    for start in range(0, len(items), chunk):
        job = MeasureJob(
            job_id=f"measure-{measurement.pk}-{stamp}-{start}", measurement_id=str(measurement.pk),
            items=items[start : start + chunk], seed=measurement.seed,
            num_inputs=measurement.options["num_inputs"],
        )  # fmt: skip
        after_commit(messaging.send_job, job)


def _store(row: MeasuredTask, found: TaskMeasured) -> None:
    row.measured_at = timezone.now()
    row.num_possible, row.num_inputs, row.num_refused = found.num_possible, found.num_inputs, found.num_refused
    row.error = found.error
    row.save()
    MeasuredCandidate.objects.bulk_create(_candidate(row, outcome) for outcome in found.outcomes)


def _candidate(row: MeasuredTask, outcome: CandidateOutcome) -> MeasuredCandidate:
    return MeasuredCandidate(measured=row, **msgspec.structs.asdict(outcome))


def _finish(measurement: VerifierMeasurement) -> None:
    """Ready, or failed where no task could be measured."""
    errors = list(measurement.tasks.exclude(error="").values_list("error", flat=True))
    candidates = MeasuredCandidate.objects.filter(measured__measurement=measurement).count()
    measurement.finished_at = timezone.now()
    if candidates:
        measurement.state = MeasurementState.READY
        measurement.status_message = f"{candidates} candidates on {measurement.num_tasks - len(errors)} tasks."
    else:
        measurement.state = MeasurementState.FAILED
        measurement.status_message = f"No task could be measured: {errors[0] if errors else 'no candidate came back'}"
    after = {
        "suite": str(measurement.suite), "measurement": str(measurement.pk), "state": measurement.state,
        "num_candidates": candidates, "num_not_measured": len(errors),
    }  # fmt: skip
    record(
        tag="system:verifier:measure", by=None, project=measurement.suite.project, subject=measurement.suite,
        after=after,
    )  # fmt: skip


def _usable(suite: Suite) -> list[Task]:
    tasks = list(suite.tasks.filter(state=TaskState.READY).order_by("position"))
    if not tasks:
        raise Problem("not_measurable", 409, f"No task of {suite} is ready.")
    return tasks


def _lock_suite(suite: Suite) -> Suite:
    return Suite.objects.select_for_update(of=("self",)).select_related("project").get(pk=suite.pk)


def _lock(measurement_id: str) -> VerifierMeasurement | None:
    try:
        key = UUID(measurement_id)
    except ValueError:
        return None
    rows = VerifierMeasurement.objects.select_for_update(of=("self",)).select_related("suite__project")
    return rows.filter(pk=key).first()
