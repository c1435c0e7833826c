"""REST of metrics: series of a run, its live state, the registry."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.metrics.registry import METRICS
from apps.metrics.selectors import Cursor, live_state, series
from apps.runs.selectors import find_run
from ratchet.endpoints import Endpoint


class MetricSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    unit = serializers.CharField()
    definition = serializers.CharField()
    source = serializers.CharField(help_text="reported by the trainer, or measured by the platform")  # type: ignore[assignment]
    axis = serializers.CharField(help_text="step or version")


class SeriesSerializer(MetricSerializer):
    steps = serializers.ListField(child=serializers.IntegerField())
    values = serializers.ListField(child=serializers.FloatField(allow_null=True))
    measured = serializers.BooleanField()


class RunMetrics(Endpoint):
    @extend_schema(
        parameters=[OpenApiParameter("name", OpenApiTypes.STR, many=True, description="Only these series.")],
        responses=SeriesSerializer(many=True),
    )
    def get(self, request: Request, pk: str) -> Response:
        """Every series of the run with its unit, definition and source; null where a value was NaN or infinite."""
        run = find_run(request.user, pk)
        return Response(SeriesSerializer(series(run, request.query_params.getlist("name")), many=True).data)


class RunLive(Endpoint):
    @extend_schema(
        parameters=[
            OpenApiParameter("cursor", OpenApiTypes.INT, description="Last point seen."),
            OpenApiParameter("events", OpenApiTypes.INT, description="Last event seen."),
            OpenApiParameter("mark", OpenApiTypes.STR, description="Mark of the tables held already."),
        ],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, pk: str) -> Response:
        """What the websocket ws/runs/{id}/ pushes: the strip, new points and events, tables, ledger, processes."""
        run = find_run(request.user, pk)
        query = request.query_params
        since = Cursor(_number(query.get("cursor", "")), _number(query.get("events", "")))
        return Response(live_state(run, since, known_tables=query.get("mark", "")))


class MetricRegistry(Endpoint):
    @extend_schema(responses=MetricSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every metric the platform knows."""
        return Response([asdict(metric) for metric in METRICS.values()])


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
