"""REST of a suite's report and of the environment contract."""

from typing import Any

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.tasks.api.report_serializers import (
    ContractSerializer,
    FindingListSerializer,
    ReportOptionsSerializer,
    SuiteReportSerializer,
)
from apps.tasks.contracts import contract_of
from apps.tasks.reports import selectors
from apps.tasks.reports.models import ReportState, SuiteReport
from apps.tasks.reports.services import request_report
from apps.tasks.selectors import find_suite, find_task, is_protected
from apps.tasks.services import note_heldout_look
from ratchet.bodies import part, part_parameters, read_body
from ratchet.endpoints import Endpoint
from ratchet.problems import Problem


class SuiteReportDetail(Endpoint):
    @extend_schema(responses={200: SuiteReportSerializer, 202: SuiteReportSerializer})
    def get(self, request: Request, pk: str) -> Response:
        """The newest report on the suite; 202 with its progress while it is computed, 404 where none was asked for."""
        suite = find_suite(request.user, pk)
        report = selectors.newest_report(suite)
        if report is None:
            raise Problem("no_report", 404, "No report on this suite was computed yet: POST to this address.")
        return _answer(report)

    @extend_schema(request=ReportOptionsSerializer, responses={200: SuiteReportSerializer, 202: SuiteReportSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Compute the report: 202 while it is, 200 with the one that there is where nothing has changed since."""
        suite = find_suite(request.user, pk)
        options = read_body(request, ReportOptionsSerializer)
        return _answer(request_report(suite=suite, by=caller(request), options=options))


class ReportFinding(Endpoint):
    @extend_schema(
        operation_id="suites_report_finding_retrieve",
        parameters=[
            *part_parameters(),
            OpenApiParameter("split", OpenApiTypes.STR, description="Only tasks of this split."),
        ],
        responses=FindingListSerializer,
    )
    def get(self, request: Request, pk: str, finding: str) -> Response:
        """The tasks behind a count. What tells of held-out tasks needs heldout:read, and is audited."""
        suite = find_suite(request.user, pk)
        report = selectors.newest_ready(suite)
        if report is None:
            raise Problem("no_report", 404, "No report on this suite is ready.")
        found = selectors.find_finding(selectors.load_body(report), finding)
        offset, limit = part(request)
        listed = selectors.list_finding(
            caller(request), report, found,
            offset=offset, limit=limit,
            split=request.query_params.get("split", ""),
        )  # fmt: skip
        return Response(FindingListSerializer(listed).data)


class TaskContract(Endpoint):
    @extend_schema(responses=ContractSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """What the task's sandboxes are granted and denied. Names of held-out files need heldout:read."""
        task = find_task(request.user, pk)
        contract = contract_of(request.user, task)
        if is_protected(task.split) and not contract.content_hidden:
            note_heldout_look(suite=task.suite, by=caller(request), task_keys=[task.key])
        return Response(ContractSerializer(contract).data)


def _answer(report: SuiteReport) -> Response:
    headers = {"Location": f"/api/v1/suites/{report.suite_id}/report/"}
    computing = report.state == ReportState.COMPUTING
    data: dict[str, Any] = {
        "id": report.pk, "suite": report.suite_id, "state": report.state, "input_hash": report.input_hash,
        "options": report.options, "status_message": report.status_message, "verdict": report.verdict,
        "created_at": report.created_at, "finished_at": report.finished_at,
        "progress": selectors.progress_of(report) if computing else None, "outdated": None, "stale": None,
        "report": None,
    }  # fmt: skip
    if report.state == ReportState.READY:
        data["outdated"], data["stale"] = selectors.is_outdated(report), selectors.is_stale(report)
        data["report"] = _summary(report)
    serialized = SuiteReportSerializer(data).data
    return Response(serialized, status=202 if computing else 200, headers=headers)


def _summary(report: SuiteReport) -> dict[str, Any]:
    """The body with the address of each finding's rows in the place of the rows."""
    summary: dict[str, Any] = msgspec.to_builtins(selectors.load_body(report))
    for finding in summary["findings"]:
        finding["url"] = f"/api/v1/suites/{report.suite_id}/report/{finding['name']}/"
        finding["num_rows"] = len(finding.pop("rows"))
    return summary
