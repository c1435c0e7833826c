"""Reads of measurements: outcomes for the rates, lists and single candidates without what the reader may not know."""

import ast
import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Actor, Permission, has_permission, not_found, permitted_projects
from apps.tasks.measurements.models import MeasuredCandidate, MeasurementState, Method, Truth, VerifierMeasurement
from apps.tasks.models import Suite, Task
from apps.tasks.selectors import is_protected, load_bundle, may_read_content
from apps.tasks.services import note_heldout_look
from gpu_workers.contracts.enums import Verdict
from ratchet.problems import Problem

SELECTIONS: dict[str, Q] = {
    "false_pass": Q(verdict=Verdict.PASS, truth=Truth.WRONG),
    "false_fail": Q(verdict=Verdict.FAIL, truth=Truth.RIGHT),
    "undecided": Q(truth=Truth.UNDECIDED) | ~Q(verdict__in=[Verdict.PASS, Verdict.FAIL]),
    "all": Q(),
}


@dataclass(frozen=True)
class Outcome:
    """What the rates need of a candidate: never content."""

    task: str
    origin: str
    verdict: str
    truth: str
    difference: str


@dataclass(frozen=True)
class MeasuredProgress:
    """Tasks measured so far; `left_seconds` None: cannot be told yet."""

    done: int
    total: int
    left_seconds: float | None


@dataclass(frozen=True)
class CandidateRow:
    """One candidate in a list. With `hidden` the texts, the line and the message are empty."""

    id: UUID
    task: Task
    origin: str
    line: int
    verdict: str
    reason_code: str
    message: str
    truth: str
    difference: str
    num_inputs: int
    num_different: int
    input: str
    expected: str
    got: str
    hidden: bool


@dataclass(frozen=True)
class CandidateList:
    rows: list[CandidateRow]
    total: int
    next_offset: int | None


@dataclass(frozen=True)
class CandidateDetail:
    """One candidate, opened. `diff`: lines of a unified diff against the reference; empty for answers."""

    row: CandidateRow
    measurement: VerifierMeasurement
    text: str
    diff: list[str]


def visible_measurements(user: Actor) -> QuerySet[VerifierMeasurement]:
    """Measurements of suites the user may see, newest first."""
    projects = permitted_projects(user, Permission.SUITE_READ)
    rows = VerifierMeasurement.objects.filter(suite__project__in=projects.values("pk"))
    return rows.select_related("suite__project", "created_by")


def find_measurement(user: Actor, measurement_id: UUID | str) -> VerifierMeasurement:
    """One measurement the user may see. Raises Problem 404."""
    found = visible_measurements(user).filter(pk=measurement_id).first()
    if found is None:
        raise not_found()
    return found


def newest_ready(suite: Suite) -> VerifierMeasurement | None:
    """The newest finished measurement of a suite that the caller may see."""
    return suite.measurements.filter(state=MeasurementState.READY).select_related("suite", "created_by").first()


def newest(suite: Suite) -> VerifierMeasurement | None:
    return suite.measurements.select_related("suite", "created_by").first()


def progress_of(measurement: VerifierMeasurement) -> MeasuredProgress:
    done, total = measurement.num_measured, measurement.num_tasks
    elapsed = (timezone.now() - measurement.created_at).total_seconds()
    return MeasuredProgress(done, total, elapsed / done * (total - done) if done else None)


def outcomes_of(measurement: VerifierMeasurement) -> list[Outcome]:
    rows = MeasuredCandidate.objects.filter(measured__measurement=measurement)
    fields = rows.values_list("measured__task_id", "origin", "verdict", "truth", "difference")
    return [Outcome(str(task), *rest) for task, *rest in fields]


def list_candidates(
    user: User, measurement: VerifierMeasurement, selection: str, *, offset: int = 0, limit: int = 50
) -> CandidateList:
    """Candidates of a selection (`SELECTIONS`); what is shown of held-out tasks is audited. Raises Problem 400."""
    if selection not in SELECTIONS:
        message = f"must be one of {', '.join(SELECTIONS)}"
        raise Problem("invalid", 400, "The list cannot be shown.", [{"path": "selection", "message": message}])
    found = _candidates(measurement).filter(SELECTIONS[selection])
    shown = list(found[offset : offset + limit])
    opened = _may_read(user, measurement)
    rows = [_row(candidate, opened) for candidate in shown]
    _note(user, measurement, rows)
    total = found.count()
    return CandidateList(rows, total, offset + limit if offset + limit < total else None)


def find_candidate(user: User, candidate_id: UUID | str) -> CandidateDetail:
    """One candidate of a measurement the user may see; on held-out tasks without its texts where the right is missing.

    Raises Problem 404.
    """
    candidate = MeasuredCandidate.objects.filter(pk=candidate_id).select_related("measured__measurement").first()
    if candidate is None:
        raise not_found()
    measurement = find_measurement(user, candidate.measured.measurement_id)
    candidate = _candidates(measurement).get(pk=candidate.pk)
    row = _row(candidate, may_read_content(user, candidate.measured.task))
    _note(user, measurement, [row])
    if row.hidden:
        return CandidateDetail(row, measurement, "", [])
    diff = diff_to_reference(row.task, candidate.text) if measurement.method == Method.MUTANTS else []
    return CandidateDetail(row, measurement, candidate.text, diff)


def diff_to_reference(task: Task, code: str) -> list[str]:
    """Unified diff of a task's reference and a program. A program that was written anew, not changed in one place,
    is compared with the reference written in the same way."""
    reference = load_bundle(task).reference[-1].content
    original = reference.partition("\n")[2].rpartition("```")[0] if reference.startswith("```") else reference
    diffs = [_diff(text, code) for text in (original, _rewritten(original))]
    return min(diffs, key=lambda diff: sum(line[:1] in "+-" for line in diff))


def _diff(original: str, code: str) -> list[str]:
    lines = difflib.unified_diff(original.rstrip().splitlines(), code.rstrip().splitlines(), lineterm="", n=4)
    return list(lines)[2:]


def _rewritten(code: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.unparse(ast.parse(code))
    except (SyntaxError, ValueError):
        return code


def _candidates(measurement: VerifierMeasurement) -> QuerySet[MeasuredCandidate]:
    rows = MeasuredCandidate.objects.filter(measured__measurement=measurement)
    return rows.select_related("measured__task__suite__project").order_by("measured__task__position", "number")


def _may_read(user: Actor, measurement: VerifierMeasurement) -> bool:
    """Whether the texts of candidates on held-out tasks may be shown."""
    return has_permission(user, Permission.HELDOUT_READ, measurement.suite.project)


def _row(candidate: MeasuredCandidate, opened: bool) -> CandidateRow:
    task = candidate.measured.task
    hidden = is_protected(task.split) and not opened
    names = ("input", "expected", "got", "message")
    texts: dict[str, Any] = {name: "" if hidden else getattr(candidate, name) for name in names}
    return CandidateRow(
        id=candidate.pk, task=task, origin=candidate.origin, line=0 if hidden else candidate.line,
        verdict=candidate.verdict, reason_code=candidate.reason_code, truth=candidate.truth,
        difference=candidate.difference, num_inputs=candidate.num_inputs, num_different=candidate.num_different,
        hidden=hidden, **texts,
    )  # fmt: skip


def _note(user: User, measurement: VerifierMeasurement, rows: Sequence[CandidateRow]) -> None:
    looked = {row.task.key for row in rows if is_protected(row.task.split) and not row.hidden}
    if looked:
        note_heldout_look(suite=measurement.suite, by=user, task_keys=sorted(looked))
