"""The page of a suite's report."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, has_permission
from apps.tasks.reports.models import ReportState
from apps.tasks.reports.options import LENGTH_BINS, RATE_BINS, ContractRow
from apps.tasks.reports.selectors import (
    find_finding,
    is_outdated,
    list_finding,
    load_body,
    newest_ready,
    newest_report,
    progress_of,
)
from apps.tasks.selectors import find_suite
from gpu_workers.contracts.grants import Grant
from ratchet.pages import filters, page, reader


@login_required
def suite_report(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Findings worst first; `?finding=` opens the tasks behind one. What tells of held-out tasks is audited."""
    user = reader(request)
    suite = find_suite(user, pk)
    newest, ready = newest_report(suite), newest_ready(suite)
    body = load_body(ready) if ready else None
    chosen = filters(request, "finding", "offset")
    offset = int(chosen["offset"]) if chosen["offset"].isdecimal() else 0
    opened = None
    if ready and body and chosen["finding"]:
        opened = list_finding(user, ready, find_finding(body, chosen["finding"]), offset=offset)
    running = newest if newest and newest.state == ReportState.COMPUTING else None
    return page(
        request, "suite_report.html", here="suites", suite=suite, report=ready, body=body, chosen=opened, offset=offset,
        running=running, progress=progress_of(running) if running else None,
        failed=newest if newest and newest.state == ReportState.FAILED else None,
        outdated=is_outdated(ready) if ready else False, rate_bins=RATE_BINS, length_bins=_length_labels(),
        contracts=[_contract(row) for row in body.contracts] if body else [],
        computes=has_permission(user, Permission.EVALUATION_CREATE, suite.project),
    )  # fmt: skip


def _contract(row: ContractRow) -> dict[str, Any]:
    return {
        "contract_hash": row.contract_hash,
        "num_tasks": row.num_tasks,
        "example": row.example,
        "grants": [Grant(*grant) for grant in row.grants],
    }


def _length_labels() -> list[str]:
    return [*(f"≤ {bound:,}" for bound in LENGTH_BINS), "more"]
