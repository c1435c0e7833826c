"""REST of the audit trail: list, export, verify."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import django_filters
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.permissions import Permission, find_project, permitted_projects
from apps.audit import selectors
from apps.audit.api.serializers import AuditEventSerializer, ChainSerializer
from apps.audit.models import AuditEvent
from apps.audit.verification import verify_chain
from ratchet.endpoints import Endpoint, ListEndpoint
from ratchet.problems import Problem
from ratchet.streaming import stream

_PROJECT = OpenApiParameter("project", str, description="slug of the project", required=True)


class AuditFilter(django_filters.FilterSet):
    project = django_filters.CharFilter(method="of_project", label="slug of the project")
    actor = django_filters.CharFilter(field_name="actor_name")
    since = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = AuditEvent
        fields = ["project", "tag", "actor", "subject_type", "subject_id", "since", "until"]

    def of_project(self, events: QuerySet[AuditEvent], name: str, value: str) -> QuerySet[AuditEvent]:
        projects = permitted_projects(self.request.user, Permission.AUDIT_READ).filter(slug=value)
        return events.filter(project_id__in=projects.values("pk"))


class AuditList(ListEndpoint[AuditEvent]):
    serializer_class = AuditEventSerializer
    queryset = AuditEvent.objects.none()
    filterset_class = AuditFilter

    def get_queryset(self) -> QuerySet[AuditEvent]:
        return selectors.visible_events(self.request.user)


class AuditVerify(Endpoint):
    @extend_schema(
        parameters=[
            _PROJECT,
            OpenApiParameter("anchor", str, description="sequence:hash that an earlier answer or export gave as head"),
        ],
        responses=ChainSerializer,
    )
    def get(self, request: Request) -> Response:
        """Recompute the project's hash chain and say whether it is whole."""
        project = find_project(request.user, _project_slug(request), Permission.AUDIT_READ)
        return Response(ChainSerializer(asdict(verify_chain(project, anchor=_anchor(request)))).data)


class AuditExport(Endpoint):
    streams = True

    @extend_schema(
        parameters=[_PROJECT, OpenApiParameter("as", str, enum=["jsonl", "csv"], description="default jsonl")],
        responses={(200, "application/x-ndjson"): OpenApiTypes.STR, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """Every event of the project in order, as JSON lines or CSV."""
        project = find_project(request.user, _project_slug(request), Permission.AUDIT_READ)
        events = selectors.visible_events(request.user, project).order_by("sequence")
        kind = request.query_params.get("as", "jsonl")
        if kind not in ("jsonl", "csv"):
            errors = [{"path": "as", "message": "must be jsonl or csv"}]
            raise Problem("invalid", 400, f"Audit events cannot be exported as {kind!r}.", errors)
        lines, content_type = (_csv(events), "text/csv") if kind == "csv" else (_jsonl(events), "application/x-ndjson")
        return stream(request, lines, content_type, f"audit-{project.slug}.{kind}")


def _project_slug(request: Request) -> str:
    slug = request.query_params.get("project", "")
    if not slug:
        raise Problem("invalid", 400, "Name the project: ?project=slug.", [{"path": "project", "message": "is needed"}])
    return slug


def _anchor(request: Request) -> tuple[int, str] | None:
    text = request.query_params.get("anchor", "")
    if not text:
        return None
    sequence, _, digest = text.partition(":")
    if not sequence.isdecimal() or len(sequence) > 18 or len(digest) != 64:
        errors = [{"path": "anchor", "message": "must be sequence:hash"}]
        raise Problem("invalid", 400, "The anchor is no sequence and hash: give it as 12:abc….", errors)
    return int(sequence), digest


def _rows(events: QuerySet[AuditEvent]) -> Iterator[dict[str, Any]]:
    return (dict(AuditEventSerializer(event).data) for event in events.iterator(chunk_size=500))


def _jsonl(events: QuerySet[AuditEvent]) -> Iterator[str]:
    return (json.dumps(row, default=str) + "\n" for row in _rows(events))


def _csv(events: QuerySet[AuditEvent]) -> Iterator[str]:
    fields = AuditEventSerializer.Meta.fields
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(fields)
    for row in _rows(events):
        writer.writerow([_cell(row[name]) for name in fields])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _cell(value: Any) -> str:
    """Text of a cell; a leading = + - @ is quoted, since spreadsheets would run it."""
    text = json.dumps(value) if isinstance(value, dict | list) else "" if value is None else str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
