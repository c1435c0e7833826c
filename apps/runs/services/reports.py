"""Ingest: every report of a worker is stored once, or refused with the reason, in one transaction."""

import hashlib
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.runs.models import FleetInstall, IngestedReport, Run
from apps.runs.reproductions.services import apply_reproduction
from apps.runs.services import installs
from apps.runs.services.controls import lock_run
from apps.runs.services.dispatches import note_load
from apps.runs.services.group_reports import apply_group
from apps.runs.services.lifecycle import advance_soon
from apps.runs.services.trainer_reports import apply_failed, apply_finished, apply_started, apply_step
from apps.runs.signals import worker_sampled
from apps.tasks.measurements.services import apply_measured
from apps.tasks.reports.services import apply_probes
from apps.tasks.services import apply_checks
from gpu_workers.contracts.measurements import TasksMeasured
from gpu_workers.contracts.messages import PolicyInstalled, Report, TasksVerified, WorkerSample
from gpu_workers.contracts.points import read_values
from gpu_workers.contracts.replays import TasksProbed

logger = logging.getLogger(__name__)

STORED, DUPLICATE = "stored", "duplicate"


def ingest_report(payload: dict[str, Any]) -> str:
    """Store one report. Returns "stored", "duplicate" or the reason of refusal."""
    try:
        report = msgspec.convert(payload, Report)
    except msgspec.ValidationError as error:
        report = _unreadable(payload)
        return _refuse(report, f"malformed envelope: {error}")
    try:
        with transaction.atomic():
            if not _claim(report):
                return DUPLICATE
            refused = _apply(report)
            if refused:
                _note_refusal(report, refused)
    except msgspec.ValidationError as error:
        return _refuse(report, f"malformed body: {error}")
    return refused or STORED


def _claim(report: Report) -> bool:
    """Insert the report's id; False when it was there. A concurrent twin waits for our commit."""
    try:
        with transaction.atomic():
            IngestedReport.objects.create(
                report_id=report.report_id, kind=report.kind[:24], run_id=_uuid(report.run_id)
            )
    except IntegrityError:
        return False
    return True


def _note_refusal(report: Report, reason: str) -> None:
    logger.warning("report %s (%s) of %s refused: %s", report.report_id, report.kind, report.worker, reason)
    IngestedReport.objects.filter(pk=report.report_id).update(refused=reason[:200])


def _refuse(report: Report, reason: str) -> str:
    """Refuse what could not be read: what was begun is rolled back, so the id is claimed anew."""
    with transaction.atomic():
        _claim(report)
        _note_refusal(report, reason)
    return reason


def _apply(report: Report) -> str:
    """Apply a report, or return why not; a handler that refuses has changed nothing but the run's events."""
    handler = _HANDLERS.get(report.kind)
    if handler is None:
        return f"unknown kind {report.kind!r}: known are {', '.join(sorted(_HANDLERS))}"
    return handler(report)


def _trainer(apply: Callable[[Run, Report], str]) -> Callable[[Report], str]:
    def handle(report: Report) -> str:
        run = _find_run(report)
        if run is None:
            return f"unknown run {report.run_id!r}"
        run = lock_run(run)
        refused = apply(run, report)
        if not refused:
            advance_soon(run)
        return refused

    return handle


def _installed(report: Report) -> str:
    answer = msgspec.convert(report.body, PolicyInstalled)
    key = _uuid(answer.job_id)
    row = FleetInstall.objects.filter(pk=key).first() if key else None
    if row is None:
        return f"unknown install {answer.job_id!r}"
    run = lock_run(row.run) if row.run else None  # first the run, as the reconciler does
    row = FleetInstall.objects.select_for_update(no_key=True, of=("self",)).get(pk=row.pk)
    installs.apply_answer(row, answer)
    if run is not None:
        advance_soon(run)
    return ""


def _verified(report: Report) -> str:
    body = msgspec.convert(report.body, TasksVerified)
    apply_checks(suite_id=body.suite_id, checks=body.checks)
    return ""


def _probed(report: Report) -> str:
    return apply_probes(msgspec.convert(report.body, TasksProbed))


def _measured(report: Report) -> str:
    return apply_measured(msgspec.convert(report.body, TasksMeasured))


def _sample(report: Report) -> str:
    sample = msgspec.convert(report.body | {"metrics": read_values(report.body.get("metrics") or {})}, WorkerSample)
    run = _find_run(report)
    if "running_requests" in sample.metrics and "queued_requests" in sample.metrics:
        running, queued = sample.metrics["running_requests"], sample.metrics["queued_requests"]
        note_load(report.worker, running, queued, timezone.now())
    worker_sampled.send(sender=Run, run=run, sample=sample)
    return ""


_HANDLERS: dict[str, Callable[[Report], str]] = {
    "group": apply_group,
    "trainer_started": _trainer(apply_started),
    "step": _trainer(apply_step),
    "trainer_finished": _trainer(apply_finished),
    "trainer_failed": _trainer(apply_failed),
    "installed": _installed,
    "verified": _verified,
    "probed": _probed,
    "measured": _measured,
    "reproduced": apply_reproduction,
    "sample": _sample,
}


def _unreadable(payload: Any) -> Report:
    fields = payload if isinstance(payload, dict) else {}
    text = repr(payload).encode()
    report_id = str(fields.get("report_id") or f"malformed-{hashlib.sha256(text).hexdigest()}")
    return Report(report_id=report_id[:200], kind=str(fields.get("kind", ""))[:24], body={})


def _find_run(report: Report) -> Run | None:
    key = _uuid(report.run_id)
    return Run.objects.filter(pk=key).first() if key else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
