"""REST of evaluations, gate policies and the ledger of held-out looks."""

import django_filters
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.accounts.permissions import Permission, find_project, not_found
from apps.evaluations import gate_policies, selectors, services
from apps.evaluations.api import serializers
from apps.evaluations.gap import suite_gap
from apps.evaluations.models import Evaluation, GatePolicy
from apps.policies.selectors import resolve_policy
from apps.runs.api.serializers import EpisodeSerializer
from apps.tasks.models import SplitName
from apps.tasks.selectors import find_suite, is_protected, resolve_suite
from apps.tasks.services import note_heldout_look
from gpu_workers.contracts.messages import Sampling
from ratchet.bodies import read_body
from ratchet.endpoints import Endpoint, ListEndpoint
from ratchet.filters import FilterSet
from ratchet.streaming import JSON_LINES, json_lines, stream


class EvaluationFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")
    suite = django_filters.CharFilter(field_name="suite__slug")
    split = django_filters.ChoiceFilter(choices=SplitName.choices)
    run = django_filters.UUIDFilter(field_name="run_id")  # an id, so that guessing tells nothing

    class Meta:
        model = Evaluation
        fields = ["project", "suite", "purpose", "state"]


class EvaluationList(ListEndpoint[Evaluation]):
    serializer_class = serializers.EvaluationSerializer
    queryset = Evaluation.objects.none()
    filterset_class = EvaluationFilter
    ordering_fields = {"created_at": "id"}

    def get_queryset(self) -> QuerySet[Evaluation]:
        return selectors.visible_evaluations(self.request.user)

    @extend_schema(request=serializers.EvaluationCreateSerializer, responses={202: serializers.EvaluationSerializer})
    def post(self, request: Request) -> Response:
        """Start a baseline or dev evaluation of policies; each is an arm, all run interleaved.

        On split heldout only prompt-only and supervised policies, unless you may read held-out content: a candidate
        meets held-out tasks in a gate, where the look is counted.
        """
        values = read_body(request, serializers.EvaluationCreateSerializer)
        project = find_project(request.user, values["project"], Permission.EVALUATION_CREATE)
        evaluation = services.start_evaluation(
            project=project,
            suite=resolve_suite(project, values["suite"]),
            split=values["split"],
            purpose=values["purpose"],
            arms=[services.policy_arm(resolve_policy(project, slug)) for slug in values["policies"]],
            samples=values["samples"],
            sampling=Sampling(**{"temperature": 0.0, **values.get("sampling", {})}),
            max_tasks=values["max_tasks"],
            by=caller(request),
        )
        return _accepted(request, evaluation)


class EvaluationDetail(Endpoint):
    @extend_schema(responses=serializers.EvaluationSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The plan, the state and how far it is."""
        return Response(serializers.EvaluationSerializer(selectors.find_evaluation(request.user, pk)).data)


class EvaluationResults(Endpoint):
    @extend_schema(responses=serializers.ResultsSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """What was measured so far, by arm; task by task for who may read the tasks (held-out looks are audited)."""
        evaluation = selectors.find_evaluation(request.user, pk)
        results = selectors.evaluation_results(request.user, evaluation)
        if results.tasks and is_protected(evaluation.split):
            keys = [task.key for task in results.tasks]
            note_heldout_look(suite=evaluation.suite, by=caller(request), task_keys=keys)
        return Response(serializers.ResultsSerializer(results).data)


class EvaluationCancel(Endpoint):
    @extend_schema(request=None, responses=serializers.EvaluationSerializer)
    def post(self, request: Request, pk: str) -> Response:
        """Stop it; what was scored stays. Safe to repeat."""
        evaluation = selectors.find_evaluation(request.user, pk)
        services.cancel_evaluation(evaluation=evaluation, by=caller(request))
        return Response(serializers.EvaluationSerializer(selectors.find_evaluation(request.user, pk)).data)


class EvaluationRetry(Endpoint):
    @extend_schema(request=None, responses={202: serializers.EvaluationSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """The same plan as a new evaluation; while that is under way another retry answers with it."""
        evaluation = selectors.find_evaluation(request.user, pk)
        return _accepted(request, services.retry_evaluation(evaluation=evaluation, by=caller(request)))


class EvaluationComparison(Endpoint):
    @extend_schema(
        parameters=[OpenApiParameter("base", str, description="Label of the arm to compare with; the first.")],
        responses=serializers.ComparisonSerializer,
    )
    def get(self, request: Request, pk: str) -> Response:
        """Success of each arm against that of one, paired by task. Whether one is better is for a gate to say."""
        evaluation = selectors.find_evaluation(request.user, pk)
        base, rows = selectors.compare(evaluation, request.query_params.get("base", ""))
        body = {"id": evaluation.pk, "state": evaluation.state, "base": base, "arms": rows}
        return Response(serializers.ComparisonSerializer(body).data)


class GatePolicyFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")

    class Meta:
        model = GatePolicy
        fields = ["project", "slug"]


class GatePolicyList(ListEndpoint[GatePolicy]):
    serializer_class = serializers.GatePolicySerializer
    queryset = GatePolicy.objects.none()
    filterset_class = GatePolicyFilter

    def get_queryset(self) -> QuerySet[GatePolicy]:
        return selectors.visible_gate_policies(self.request.user)

    @extend_schema(request=serializers.GatePolicyCreateSerializer, responses={201: serializers.GatePolicySerializer})
    def post(self, request: Request) -> Response:
        """The next version of a gate policy. Approvers only; identical content gives the newest version."""
        values = read_body(request, serializers.GatePolicyCreateSerializer)
        project = find_project(request.user, values.pop("project"), Permission.GATE_DECIDE)
        policy = gate_policies.create_gate_policy(project=project, by=caller(request), **values)
        return Response(serializers.GatePolicySerializer(policy).data, status=201)


class GatePolicyDetail(Endpoint):
    @extend_schema(responses=serializers.GatePolicySerializer)
    def get(self, request: Request, pk: str) -> Response:
        """One version of a gate policy."""
        policy = selectors.visible_gate_policies(request.user).filter(pk=pk).first()
        if policy is None:
            raise not_found()
        return Response(serializers.GatePolicySerializer(policy).data)


class EvaluationEpisodes(Endpoint):
    streams = True

    @extend_schema(responses={(200, "application/x-ndjson"): OpenApiTypes.STR})
    def get(self, request: Request, pk: str) -> StreamingHttpResponse:
        """Every episode of the evaluation as JSON lines, streamed. On held-out tasks this needs heldout:read, and is
        audited."""
        evaluation = selectors.find_evaluation(request.user, pk)
        rows = selectors.evaluation_episodes(caller(request), evaluation)
        lines = json_lines(EpisodeSerializer(row).data for row in rows)
        return stream(request, lines, JSON_LINES, f"evaluation-{evaluation.pk}-episodes.jsonl")


class VerifierGap(Endpoint):
    @extend_schema(responses=serializers.SuiteGapSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """How often the suite's audit verifier fails what its training verifier passed, by policy.

        `examples` are the newest of those episodes that you may read.
        """
        suite = find_suite(request.user, pk)
        return Response(serializers.SuiteGapSerializer(suite_gap(request.user, suite)).data)


class HeldoutLedger(Endpoint):
    @extend_schema(responses=serializers.HeldoutLedgerSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """Looks at a suite's held-out set and the significance they spent."""
        suite = find_suite(request.user, pk)
        return Response(serializers.HeldoutLedgerSerializer(selectors.heldout_ledger(suite)).data)


def _accepted(request: Request, evaluation: Evaluation) -> Response:
    found = selectors.find_evaluation(request.user, evaluation.pk)
    location = f"/api/v1/evaluations/{evaluation.pk}/"
    return Response(serializers.EvaluationSerializer(found).data, status=202, headers={"Location": location})
