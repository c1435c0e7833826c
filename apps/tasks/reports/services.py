"""Writes of reports: ask for one, compute what needs no worker, collect the workers' probes, finish."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.tasks.models import Suite
from apps.tasks.reports import messaging
from apps.tasks.reports.attempts import SuiteAttempts, TaskAttempts, collect_attempts
from apps.tasks.reports.building import build_draft, finish_body
from apps.tasks.reports.facts import read_facts, usual_answer, usual_tool
from apps.tasks.reports.identity import input_hash, tasks_hash
from apps.tasks.reports.models import ProbeChunk, ReportState, SuiteReport
from apps.tasks.reports.options import ReportBody, ReportOptions, parse_options
from apps.tasks.reports.probing import plan_probes
from gpu_workers.contracts.replays import ProbeItem, ProbeJob, TaskProbe, TasksProbed
from gpu_workers.contracts.store import StoreError
from ratchet.commits import after_commit
from ratchet.problems import Problem
from ratchet.store import get_store

CHUNK = 20  # tasks a message
LOST_AFTER = timedelta(minutes=10)  # without any part sent or come back


class Draft(msgspec.Struct, kw_only=True):
    """What lies in the store between the two halves of a report."""

    body: ReportBody
    attempts: dict[str, TaskAttempts]
    constant: str
    tool: str


@transaction.atomic
def request_report(*, suite: Suite, by: User | None, options: Mapping[str, Any] | None = None) -> SuiteReport:
    """Have a report computed. The one under way, or one computed from the same, is the answer where there is one.

    The platform asks (`by` None) when a suite has become ready and when tasks were released or set aside.

    Raises Problem 403 without the right to start measurements, 400 naming the option that is wrong.
    """
    require(by, Permission.EVALUATION_CREATE, suite.project)
    chosen = _options(options or {})
    suite = Suite.objects.select_for_update(of=("self",)).select_related("project").get(pk=suite.pk)
    if under_way := suite.reports.filter(state=ReportState.COMPUTING).first():
        return under_way
    digest = input_hash(suite, chosen, collect_attempts(suite))
    if same := suite.reports.filter(state=ReportState.READY, input_hash=digest).first():
        return same
    report = SuiteReport.objects.create(
        suite=suite, input_hash=digest, options=msgspec.to_builtins(chosen), created_by=by,
        num_tasks=suite.tasks.count(), status_message="Reading the tasks and comparing their prompts.",
    )  # fmt: skip
    if by is not None:  # what the platform asks for by itself is in the trail once it is computed
        after = {"suite": str(suite), "report": str(report.pk), "options": report.options}
        record(tag="user:suite:report", by=by, project=suite.project, subject=suite, after=after)
    after_commit(messaging.request_compute, report.pk)
    return report


def compute_report(report_id: UUID | str) -> bool:
    """The half that needs no worker; then the probes are sent. Safe to repeat. False where there is nothing to do."""
    report = SuiteReport.objects.select_related("suite__project").filter(pk=report_id).first()
    if report is None or report.state != ReportState.COMPUTING or report.draft:
        return False
    options, attempts = parse_options(report.options), collect_attempts(report.suite)
    tasks = list(report.suite.tasks.order_by("position"))
    try:
        facts = read_facts(tasks)
    except (StoreError, msgspec.DecodeError) as error:
        fail_report(report.pk, f"The content of a task cannot be read: {error}")
        return True
    draft = Draft(
        body=build_draft(facts, attempts, options),
        attempts=attempts.tasks,
        constant=usual_answer(facts),
        tool=usual_tool(facts),
    )
    bundles = {str(task.pk): task.bundle for task in tasks}
    items = plan_probes(facts, bundles, attempts, options) if options.probe else []
    _store_draft(report, draft, items, input_hash(report.suite, options, attempts))
    return True


@transaction.atomic
def apply_probes(body: TasksProbed) -> str:
    """Store one part that a worker measured; the last one finishes the report. Returns the reason of refusal, or ""."""
    report = _lock(body.report_id)
    if report is None:
        return f"unknown report {body.report_id!r}"
    number = body.job_id.rpartition(".")[2]
    chunk = report.chunks.filter(number=number).first() if number.isdecimal() else None
    if chunk is None:
        return f"unknown part {body.job_id!r}"
    if report.state != ReportState.COMPUTING or chunk.result is not None:
        return "this part is stored already"
    expected = {item["task_id"] for item in chunk.items}
    chunk.result = _clean([msgspec.to_builtins(probe) for probe in body.probes if probe.task_id in expected])
    chunk.save(update_fields=["result"])
    report.num_probed += len(chunk.items)
    report.active_at = timezone.now()
    report.status_message = f"Workers have probed {report.num_probed} of {report.num_to_probe} tasks."
    report.save(update_fields=["num_probed", "active_at", "status_message"])
    if not report.chunks.filter(result__isnull=True).exists():
        after_commit(messaging.request_finish, report.pk)
    return ""


@transaction.atomic
def finish_report(report_id: UUID | str) -> bool:
    """Put the halves together. Safe to repeat. False where a part is missing or it is finished."""
    report = _lock(str(report_id))
    if report is None or report.state != ReportState.COMPUTING or not report.draft:
        return False
    if report.chunks.filter(result__isnull=True).exists():
        return False
    draft = msgspec.json.decode(get_store().get(report.draft), type=Draft)
    probes = [probe for chunk in report.chunks.all() for probe in msgspec.convert(chunk.result, list[TaskProbe])]
    body = finish_body(draft.body, probes, SuiteAttempts(draft.body.baseline, draft.attempts))
    report.body = get_store().put(msgspec.json.encode(body))
    report.state, report.finished_at = ReportState.READY, timezone.now()
    report.verdict, report.status_message = body.verdict, body.headline
    report.save()
    report.chunks.all().delete()
    after = {"suite": str(report.suite), "report": str(report.pk), "verdict": report.verdict, "body": report.body}
    record(tag="system:suite:report", by=None, project=report.suite.project, subject=report.suite, after=after)
    if not report.input_hash.startswith(tasks_hash(report.suite)):  # tasks were released meanwhile
        request_report(suite=report.suite, by=None, options=report.options)
    return True


@transaction.atomic
def resend_reports() -> int:
    """Send again what nobody has answered for long; returns the number of reports."""
    late = SuiteReport.objects.select_for_update(skip_locked=True, of=("self",)).filter(
        state=ReportState.COMPUTING, active_at__lt=timezone.now() - LOST_AFTER
    )
    reports = list(late)
    for report in reports:
        report.active_at = timezone.now()
        report.save(update_fields=["active_at"])
        if not report.draft:
            after_commit(messaging.request_compute, report.pk)
        elif report.chunks.filter(result__isnull=True).exists():
            _send_chunks(report, msgspec.json.decode(get_store().get(report.draft), type=Draft))
        else:
            after_commit(messaging.request_finish, report.pk)
    return len(reports)


@transaction.atomic
def _store_draft(report: SuiteReport, draft: Draft, items: list[ProbeItem], digest: str) -> None:
    """The draft and its probes at once; a second computation that comes later finds them there."""
    key = get_store().put(msgspec.json.encode(draft))
    locked = _lock(str(report.pk))
    if locked is None or locked.state != ReportState.COMPUTING or locked.draft:
        return
    locked.draft, locked.input_hash = key, digest  # attempts may have come in since it was asked for
    locked.num_to_probe, locked.active_at = len(items), timezone.now()
    locked.status_message = f"Workers probe {len(items)} tasks with shortcut policies." if items else "Finishing."
    locked.save()
    ProbeChunk.objects.bulk_create(
        ProbeChunk(report=locked, number=start // CHUNK, items=msgspec.to_builtins(items[start : start + CHUNK]))
        for start in range(0, len(items), CHUNK)
    )
    if items:
        _send_chunks(locked, draft)
    else:
        after_commit(messaging.request_finish, locked.pk)


def _send_chunks(report: SuiteReport, draft: Draft) -> None:
    for chunk in report.chunks.filter(result__isnull=True):
        job = ProbeJob(
            job_id=f"{report.pk}.{chunk.number}", report_id=str(report.pk),
            items=msgspec.convert(chunk.items, list[ProbeItem]), constant=draft.constant, tool=draft.tool,
            repeats=draft.body.options.repeats,
        )  # fmt: skip
        after_commit(messaging.send_probes, job)


@transaction.atomic
def fail_report(report_id: UUID | str, message: str) -> None:
    """End a report that cannot be computed; nothing where it is finished."""
    locked = _lock(str(report_id))
    if locked is not None and locked.state == ReportState.COMPUTING:
        locked.state, locked.status_message, locked.finished_at = ReportState.FAILED, message, timezone.now()
        locked.save()


def _lock(report_id: str) -> SuiteReport | None:
    try:
        key = UUID(report_id)
    except ValueError:
        return None
    rows = SuiteReport.objects.select_for_update(of=("self",)).select_related("suite__project")
    return rows.filter(pk=key).first()


def _options(values: Mapping[str, Any]) -> ReportOptions:
    try:
        return parse_options(dict(values))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").strip(".") or message.partition("field `")[2].partition("`")[0]
        errors = [{"path": field, "message": message}]
        raise Problem("invalid", 400, "The report's options cannot be used.", errors) from error


def _clean(value: Any) -> Any:
    """PostgreSQL stores no NUL characters, and verifiers' messages may hold some."""
    return msgspec.json.decode(msgspec.json.encode(value).replace(b"\\u0000", b"\\ufffd"))
