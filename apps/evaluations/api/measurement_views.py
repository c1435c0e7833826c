"""REST of verifier measurements."""

from dataclasses import asdict

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.evaluations.api import measurement_serializers as serializers
from apps.evaluations.verifier_errors import estimate_errors
from apps.tasks.measurements import selectors
from apps.tasks.measurements.models import MeasurementState, VerifierMeasurement
from apps.tasks.measurements.services import request_measurement
from apps.tasks.selectors import find_suite
from ratchet.bodies import part, part_parameters, read_body
from ratchet.endpoints import Endpoint, ListEndpoint


class MeasurementList(ListEndpoint[VerifierMeasurement]):
    """Measurements of the suite's verifier, newest first, without their rates."""

    serializer_class = serializers.MeasurementSerializer
    queryset = VerifierMeasurement.objects.none()
    filter_backends = []

    def get_queryset(self) -> QuerySet[VerifierMeasurement]:
        suite = find_suite(self.request.user, self.kwargs["pk"])
        return selectors.visible_measurements(self.request.user).filter(suite=suite)

    @extend_schema(
        request=serializers.MeasurementOptionsSerializer,
        responses={200: serializers.MeasurementDetailSerializer, 202: serializers.MeasurementDetailSerializer},
    )
    def post(self, request: Request, pk: str) -> Response:
        """Measure the suite's verifier on mutants of its references: 202 while workers do, 200 with one that there is.

        Only suites whose tasks ask for a function and bring the tests that call it.
        """
        suite = find_suite(request.user, pk)
        options = read_body(request, serializers.MeasurementOptionsSerializer)
        return _answer(request_measurement(suite=suite, by=caller(request), options=options))


class MeasurementDetail(Endpoint):
    @extend_schema(
        responses={200: serializers.MeasurementDetailSerializer, 202: serializers.MeasurementDetailSerializer}
    )
    def get(self, request: Request, pk: str) -> Response:
        """One measurement with its rates; 202 with its progress while workers measure."""
        return _answer(selectors.find_measurement(request.user, pk))


class MeasurementCandidates(Endpoint):
    @extend_schema(
        operation_id="verifier_measurements_candidates_list",
        parameters=[
            OpenApiParameter("selection", OpenApiTypes.STR, enum=list(selectors.SELECTIONS)),
            *part_parameters(),
        ],
        responses=serializers.CandidateListSerializer,
    )
    def get(self, request: Request, pk: str) -> Response:
        """Candidates of a measurement, false passes unless `selection` says otherwise. Texts of held-out tasks need
        heldout:read, and showing them is audited."""
        measurement = selectors.find_measurement(request.user, pk)
        offset, limit = part(request)
        found = selectors.list_candidates(
            caller(request), measurement, request.query_params.get("selection", "false_pass"),
            offset=offset, limit=limit,
        )  # fmt: skip
        return Response(serializers.CandidateListSerializer(found).data)


class CandidateDetail(Endpoint):
    @extend_schema(responses=serializers.CandidateDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """One candidate with its whole text and its difference from the reference."""
        found = selectors.find_candidate(caller(request), pk)
        data = {
            **{name: getattr(found.row, name) for name in found.row.__dataclass_fields__},
            "text": found.text, "diff": found.diff, "measurement": found.measurement.pk,
        }  # fmt: skip
        return Response(serializers.CandidateDetailSerializer(data).data)


def _answer(measurement: VerifierMeasurement) -> Response:
    running = measurement.state == MeasurementState.RUNNING
    rates = None
    if measurement.state == MeasurementState.READY:
        found = estimate_errors(selectors.outcomes_of(measurement))
        rates = serializers.VerifierErrorsSerializer(found).data
    data = {
        **serializers.MeasurementSerializer(measurement).data,
        "progress": asdict(selectors.progress_of(measurement)) if running else None,
        "rates": rates,
    }
    headers = {"Location": f"/api/v1/verifier-measurements/{measurement.pk}/"}
    return Response(data, status=202 if running else 200, headers=headers)
