"""Reads of reports: progress, findings, and their rows without what the reader may not know of held-out tasks."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Actor, Permission, has_permission
from apps.tasks.models import Suite, Task
from apps.tasks.reports.attempts import collect_attempts
from apps.tasks.reports.identity import input_hash, tasks_hash
from apps.tasks.reports.models import ReportState, SuiteReport
from apps.tasks.reports.options import Finding, ReportBody, Row, parse_options
from apps.tasks.selectors import is_protected
from apps.tasks.services import note_heldout_look
from gpu_workers.contracts.store import StoreError
from ratchet.problems import Problem
from ratchet.store import get_store


@dataclass(frozen=True)
class Progress:
    """Tasks probed so far; `left_seconds` None: cannot be told yet."""

    done: int
    total: int
    left_seconds: float | None


@dataclass(frozen=True)
class NamedTask:
    """A task as a list shows it: never its content."""

    id: UUID
    key: str
    split: str
    state: str


@dataclass(frozen=True)
class NamedRow:
    """One row of a finding; `other` None: the finding names no second task."""

    task: NamedTask
    other: NamedTask | None
    value: float | None
    note: str


@dataclass(frozen=True)
class FindingList:
    """Rows of a finding that the reader may see. `num_closed`: rows with a held-out task, for want of heldout:read."""

    finding: Finding
    rows: list[NamedRow] = field(default_factory=list)
    num_closed: int = 0
    next_offset: int | None = None


def newest_report(suite: Suite) -> SuiteReport | None:
    """The newest report of a suite that the caller may see, whatever its state."""
    return suite.reports.select_related("suite", "created_by").order_by("-id").first()


def newest_ready(suite: Suite) -> SuiteReport | None:
    return suite.reports.filter(state=ReportState.READY).select_related("suite", "created_by").first()


def load_body(report: SuiteReport) -> ReportBody:
    """The stored report. Raises Problem 502 where its object is lost."""
    try:
        return msgspec.json.decode(get_store().get(report.body), type=ReportBody)
    except (StoreError, msgspec.DecodeError) as error:
        raise Problem("report_unreadable", 502, f"The report cannot be read: {error}. Compute it again.") from error


def is_outdated(report: SuiteReport) -> bool:
    """Whether tasks or stored attempts have changed since: the same request now would compute anew."""
    options = parse_options(report.options)
    return input_hash(report.suite, options, collect_attempts(report.suite)) != report.input_hash


def is_stale(report: SuiteReport) -> bool:
    """Whether the suite itself has changed since: tasks were released, put back or set aside."""
    return not report.input_hash.startswith(tasks_hash(report.suite))


def progress_of(report: SuiteReport) -> Progress:
    done, total = report.num_probed, report.num_to_probe
    elapsed = (timezone.now() - report.created_at).total_seconds()
    return Progress(done, total, elapsed / done * (total - done) if done else None)


def list_finding(
    user: User, report: SuiteReport, finding: Finding, *, offset: int = 0, limit: int = 50, split: str = ""
) -> FindingList:
    """Rows `offset` to `offset + limit` that the user may see; what is shown of held-out tasks is audited.

    Keys of tasks are no content. Rows that tell more (`discloses`) are dropped where a task of theirs is held out
    and the user lacks heldout:read.
    """
    may_read = has_permission(user, Permission.HELDOUT_READ, report.suite.project)
    tasks = _tasks(report.suite, finding.rows)
    named = [_name(row, tasks) for row in finding.rows if row.task in tasks]
    if split:
        named = [row for row in named if row.task.split == split]
    hides = finding.discloses and not may_read
    open_rows = [row for row in named if not (hides and _is_heldout(row))]
    shown = open_rows[offset : offset + limit]
    if finding.discloses and (looked := sorted({row.task.key for row in shown if _is_heldout(row)})):
        note_heldout_look(suite=report.suite, by=user, task_keys=looked)
    following = offset + limit if offset + limit < len(open_rows) else None
    return FindingList(finding, shown, len(named) - len(open_rows), following)


def find_finding(body: ReportBody, name: str) -> Finding:
    """A finding by its name. Raises Problem 404 naming those there are."""
    finding = body.finding(name)
    if finding is None:
        names = ", ".join(found.name for found in body.findings)
        raise Problem("not_found", 404, f"The report has no finding {name!r}; it has {names}.")
    return finding


def sees_heldout(user: Actor, suite: Suite) -> bool:
    return has_permission(user, Permission.HELDOUT_READ, suite.project)


def _tasks(suite: Suite, rows: list[Row]) -> dict[str, NamedTask]:
    ids = {key for row in rows for key in (row.task, row.other) if key}
    found: dict[str, NamedTask] = {}
    fields: Any = Task.objects.filter(suite=suite, pk__in=ids).values_list("pk", "key", "split", "state")
    for pk, key, split, state in fields:
        found[str(pk)] = NamedTask(pk, key, split, state)
    return found


def _name(row: Row, tasks: dict[str, NamedTask]) -> NamedRow:
    return NamedRow(tasks[row.task], tasks.get(row.other), row.value, row.note)


def _is_heldout(row: NamedRow) -> bool:
    return is_protected(row.task.split) or (row.other is not None and is_protected(row.other.split))
