"""REST of metrics: series of a run, its live state, the registry."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.metrics.reading import MOST_POINTS, TooManyPoints, read_series
from apps.metrics.registry import METRICS
from apps.metrics.selectors import Cursor, describe_series, live_state
from apps.runs.selectors import find_run
from ratchet.bodies import flag, flag_parameter, number, optional_number
from ratchet.endpoints import Endpoint
from ratchet.problems import Problem

CURSOR_HEADER = "Ratchet-Cursor"
MOST_ASKED = 10_000  # points of a thinned series


class MetricSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    unit = serializers.CharField()
    definition = serializers.CharField()
    source = serializers.CharField(help_text="reported by the trainer, or measured by the platform")  # type: ignore[assignment]
    axis = serializers.CharField(help_text="step or version")
    kind = serializers.CharField(help_text="series, or histogram: a distribution at each position of the axis")


_NUMBER = {"oneOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}


@extend_schema_field(_NUMBER)
class ValueField(serializers.Field[Any, Any, Any, Any]):
    """A number, or the name of one that JSON has not."""

    def to_representation(self, value: Any) -> Any:
        return value


class SeriesSerializer(MetricSerializer):
    steps = serializers.ListField(child=serializers.IntegerField())
    values = serializers.ListField(child=ValueField())
    measured = serializers.BooleanField()
    num_points = serializers.IntegerField(help_text="stored in the range; more than are given where `whole` is false")
    num_not_finite = serializers.IntegerField(help_text="of them NaN or infinite")
    whole = serializers.BooleanField(help_text="false: of each bucket of steps only the lowest and the highest point")


class RunMetrics(Endpoint):
    @extend_schema(
        parameters=[
            OpenApiParameter("name", OpenApiTypes.STR, many=True, description="Only these series."),
            OpenApiParameter("from", OpenApiTypes.INT, description="First step."),
            OpenApiParameter("to", OpenApiTypes.INT, description="Last step."),
            OpenApiParameter("most", OpenApiTypes.INT, description="Points of a series, 2 to 10,000; default 1,000."),
            flag_parameter("every", "Every point, up to 500,000 in all."),
            OpenApiParameter(
                CURSOR_HEADER,
                OpenApiTypes.INT,
                OpenApiParameter.HEADER,
                response=True,
                description="Revision that the answer holds: go on from it with /live/ or the websocket.",
            ),
        ],
        responses=SeriesSerializer(many=True),
    )
    def get(self, request: Request, pk: str) -> Response:
        """Series of the run with unit, definition and source. Long ones keep the lowest and highest of each bucket."""
        run = find_run(request.user, pk)
        query = request.query_params
        low, high = optional_number(request, "from"), optional_number(request, "to")
        most = number(request, "most", MOST_POINTS, 2, MOST_ASKED)
        every = flag(request, "every")
        try:
            reading = read_series(run, query.getlist("name"), low=low, high=high, most=most, every_point=every)
        except TooManyPoints as error:
            raise Problem(
                "too_many_points", 400, str(error), [{"path": "every", "message": "too many points"}]
            ) from error
        body = SeriesSerializer(describe_series(reading), many=True).data
        return Response(body, headers={CURSOR_HEADER: str(reading.cursor)})


class RunLive(Endpoint):
    @extend_schema(
        parameters=[
            OpenApiParameter(
                "cursor", OpenApiTypes.INT, description="Last revision seen: points of later ones come, each once."
            ),
            OpenApiParameter("events", OpenApiTypes.INT, description="Last event seen."),
            OpenApiParameter("mark", OpenApiTypes.STR, description="Mark of the tables held already."),
        ],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, pk: str) -> Response:
        """What the websocket ws/runs/{id}/ pushes: the strip, new points and events, tables, ledger, processes."""
        run = find_run(request.user, pk)
        query = request.query_params
        since = Cursor(number(request, "cursor", 0), number(request, "events", 0))
        return Response(live_state(run, since, known_tables=query.get("mark", "")))


class MetricRegistry(Endpoint):
    @extend_schema(responses=MetricSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every metric the platform knows."""
        return Response([asdict(metric) for metric in METRICS.values()])
