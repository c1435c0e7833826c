"""Pages of a measured verifier: its error rates with every candidate behind them, and one candidate opened."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, has_permission
from apps.evaluations.statistics import wilson
from apps.evaluations.verifier_errors import ErrorRate, VerifierErrors, estimate_errors
from apps.tasks.measurements import selectors
from apps.tasks.measurements.models import MeasurementState, Method, VerifierMeasurement
from apps.tasks.models import Suite
from apps.tasks.selectors import find_suite
from ratchet.pages import filters, page, reader

_PER_PAGE = 50
_NOT_MEASURED_SHOWN = 20


@login_required
def suite_verifier(request: HttpRequest, pk: UUID) -> HttpResponse:
    """How often the suite's verifier is wrong; `?selection=` chooses the candidates in the table."""
    user = reader(request)
    suite = find_suite(user, pk)
    newest = selectors.newest(suite)
    ready, errors = measured_errors(suite) or (None, None)
    chosen = filters(request, "selection", "offset")
    offset = int(chosen["offset"]) if chosen["offset"].isdecimal() else 0
    selection = chosen["selection"] or "false_pass"
    running = newest if newest and newest.state == MeasurementState.RUNNING else None
    return page(
        request, "suite_verifier.html", here="suites", suite=suite, measurement=ready, errors=errors,
        rates=_rates(errors) if errors else [], selection=selection, offset=offset,
        listed=selectors.list_candidates(user, ready, selection, offset=offset, limit=_PER_PAGE) if ready else None,
        running=running, progress=selectors.progress_of(running) if running else None,
        failed=newest if newest and newest.state == MeasurementState.FAILED else None,
        not_measured=list(ready.tasks.exclude(error="").select_related("task")[:_NOT_MEASURED_SHOWN]) if ready else [],
        others=_others(user, suite.pk, suite.project_id), is_key=bool(ready and ready.method == Method.ANSWER_KEY),
        num_possible=ready.tasks.aggregate(all=Sum("num_possible"))["all"] if ready else 0,
        corrections=_corrections(ready) if ready else [],
        measures=has_permission(user, Permission.EVALUATION_CREATE, suite.project),
    )  # fmt: skip


@login_required
def measured_candidate(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One candidate: what the verifier said, what is true, and the first input that shows it."""
    found = selectors.find_candidate(reader(request), pk)
    return page(
        request, "measured_candidate.html", here="suites", row=found.row, measurement=found.measurement,
        suite=found.measurement.suite, text=found.text, diff=found.diff,
        is_key=found.measurement.method == Method.ANSWER_KEY,
    )  # fmt: skip


def measured_errors(suite: Suite) -> tuple[VerifierMeasurement, VerifierErrors] | None:
    """The newest finished measurement of a suite that the caller may see, with its rates."""
    ready = selectors.newest_ready(suite)
    return (ready, estimate_errors(selectors.outcomes_of(ready))) if ready else None


def _rates(errors: VerifierErrors) -> list[dict[str, Any]]:
    """The rates that are drawn, as the macro `dots` takes them."""
    named = [
        ("Passed, of the wrong", errors.false_pass),
        ("Failed, of the right", errors.false_fail),
        ("Wrong, of the passed", errors.wrong_among_passed),
    ]
    return [_drawn(label, rate) for label, rate in named if rate.n]


def _drawn(label: str, rate: ErrorRate) -> dict[str, Any]:
    low, high = rate.clustered.low, rate.clustered.high
    return {"label": label, "role": "", "success": rate.estimate, "low": low, "high": high, "n": rate.n}


def _corrections(measurement: VerifierMeasurement) -> list[dict[str, Any]]:
    """Categories of the benchmark whose answers were corrected, with the totals of single and of many turns."""
    rows: list[dict[str, Any]] = [{**row, "is_total": False} for row in measurement.facts]
    totals = []
    for name, is_many in (("one turn, all categories", False), ("many turns, all categories", True)):
        members = [row for row in rows if row["category"].startswith("multi_turn") is is_many]
        counts = ("num_tasks", "num_corrected", "num_asked_otherwise")
        if members:
            sums = {count: sum(row[count] for row in members) for count in counts}
            totals.append({"category": name, "is_total": True, **sums})
    return [{**row, "wilson": wilson(row["num_corrected"], row["num_tasks"])} for row in [*rows, *totals]]


def _others(user: Any, suite_id: UUID, project_id: UUID) -> list[tuple[VerifierMeasurement, VerifierErrors]]:
    """The newest measurement of each other suite of the project, to be read beside this one."""
    rows = selectors.visible_measurements(user).filter(state=MeasurementState.READY, suite__project=project_id)
    newest: dict[UUID, VerifierMeasurement] = {}
    for row in rows.exclude(suite=suite_id):
        newest.setdefault(row.suite_id, row)
    return [(row, estimate_errors(selectors.outcomes_of(row))) for row in list(newest.values())[:5]]
