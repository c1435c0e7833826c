"""REST of gates: open, read, decide, confirm an override, evidence."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.accounts.models import Project
from apps.accounts.permissions import Permission, find_project
from apps.evaluations.gate_policies import resolve_gate_policy
from apps.policies.models import Channel
from apps.policies.selectors import resolve_policy
from apps.promotions import selectors, services
from apps.promotions.api import serializers
from apps.promotions.models import Gate
from apps.promotions.planning import plan_gate
from apps.runs.models import Run
from apps.tasks.selectors import resolve_suite
from apps.tasks.services import note_heldout_look
from gpu_workers.contracts.messages import Sampling
from ratchet.bodies import read_body
from ratchet.endpoints import Endpoint, ListEndpoint, sent_etags
from ratchet.filters import FilterSet
from ratchet.problems import Problem

_IF_MATCH = OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, description="the evidence_digest you looked at")


class GateFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")
    channel = django_filters.CharFilter(field_name="channel__name")
    candidate = django_filters.CharFilter(field_name="candidate__slug")
    run = django_filters.UUIDFilter(field_name="run_id")  # an id, so that guessing tells nothing

    class Meta:
        model = Gate
        fields = ["project", "channel", "candidate", "state", "verdict"]


class GateList(ListEndpoint[Gate]):
    serializer_class = serializers.GateSerializer
    queryset = Gate.objects.none()
    filterset_class = GateFilter
    ordering_fields = {"created_at": "id", "number": "number"}

    def get_queryset(self) -> QuerySet[Gate]:
        return selectors.visible_gates(self.request.user)

    @extend_schema(request=serializers.GateCreateSerializer, responses={202: serializers.GateSerializer})
    def post(self, request: Request) -> Response:
        """Compare a candidate with what a channel serves, on the suite's held-out tasks. This spends a look."""
        values = read_body(request, serializers.GateCreateSerializer)
        project = find_project(request.user, values["project"], Permission.GATE_CREATE)
        sampling = values.get("sampling")
        gate = services.open_gate(
            project=project,
            channel=_find_channel(project, values["channel"]),
            candidate=resolve_policy(project, values["candidate"]),
            gate_policy=resolve_gate_policy(project, values["gate_policy"]),
            suite=resolve_suite(project, values["suite"]),
            samples=values["samples"],
            extra_arms=[resolve_policy(project, slug) for slug in values["baselines"]],
            sampling=Sampling(**{"temperature": 0.0, **sampling}) if sampling else None,
            run=_find_run(project, values.get("run")),
            by=caller(request),
        )
        found = selectors.find_gate(request.user, gate.pk)
        headers = {"Location": f"/api/v1/gates/{gate.pk}/"}
        return Response(serializers.GateSerializer(found).data, status=202, headers=headers)


class GatePlanView(Endpoint):
    @extend_schema(parameters=[serializers.GatePlanQuerySerializer], responses=serializers.GatePlanSerializer)
    def get(self, request: Request) -> Response:
        """What a gate opened now could show: alpha of its look, detectable effect, what is out of reach."""
        values = read_body(request, serializers.GatePlanQuerySerializer, request.query_params.dict())
        project = find_project(request.user, values["project"], Permission.GATE_READ)
        gate_policy = resolve_gate_policy(project, values["gate_policy"], make_default=False)
        plan = plan_gate(resolve_suite(project, values["suite"]), gate_policy, values["samples"])
        return Response(serializers.GatePlanSerializer(plan).data)


class GateDetail(Endpoint):
    @extend_schema(responses=serializers.GateDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The verdict with its report, what you may do, and the held-out ledger. The ETag is the evidence digest."""
        return _detail(request, selectors.find_gate(request.user, pk))


class GateDecision(Endpoint):
    @extend_schema(
        parameters=[_IF_MATCH], request=serializers.DecideSerializer, responses=serializers.GateDetailSerializer
    )
    def post(self, request: Request, pk: str) -> Response:
        """Approve, reject, or ask to override. 409 `evidence_changed` when the stored evidence is not what you saw."""
        gate = selectors.find_gate(request.user, pk)
        values = read_body(request, serializers.DecideSerializer)
        services.decide(
            gate=gate,
            kind=values["kind"],
            reason=values["reason"],
            by=caller(request),
            evidence_digest=_seen(request, values),
        )
        return _detail(request, selectors.find_gate(request.user, pk))


class GateConfirm(Endpoint):
    @extend_schema(
        parameters=[_IF_MATCH], request=serializers.ConfirmSerializer, responses=serializers.GateDetailSerializer
    )
    def post(self, request: Request, pk: str) -> Response:
        """The second approver's word on an override: it takes effect, or the gate waits again."""
        gate = selectors.find_gate(request.user, pk)
        values = read_body(request, serializers.ConfirmSerializer)
        if values["agree"]:
            services.confirm_override(gate=gate, by=caller(request), evidence_digest=_seen(request, values))
        else:
            services.decline_override(gate=gate, by=caller(request), reason=values["reason"])
        return _detail(request, selectors.find_gate(request.user, pk))


class GateEvidence(Endpoint):
    @extend_schema(responses=serializers.EvidenceSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The report, and whether the digest recomputed from the stored episodes now is still the same."""
        gate: Any = selectors.find_gate(request.user, pk)
        _note_look(request, gate)
        body = {
            "evidence_digest": gate.evidence_digest,
            "plan_hash": gate.evaluation.plan_hash,
            "holds": selectors.evidence_holds(gate),
            "progress": {"done": gate.num_closed, "total": gate.num_groups},
            "report": selectors.readable_report(request.user, gate),
        }
        return Response(serializers.EvidenceSerializer(body).data)


def _detail(request: Request, gate: Any) -> Response:
    page = selectors.gate_page(caller(request), gate)
    _note_look(request, gate)
    gate.report, gate.allowed, gate.ledger = page.report, page.allowed, page.ledger
    headers = {"ETag": f'"{gate.evidence_digest}"'} if gate.evidence_digest else {}
    return Response(serializers.GateDetailSerializer(gate).data, headers=headers)


def _note_look(request: Request, gate: Gate) -> None:
    """Who is shown answers to held-out tasks is written down."""
    tasks = selectors.readable_report(request.user, gate).get("tasks")
    if tasks:
        keys = [row["key"] for row in (*tasks["better"], *tasks["worse"])]
        note_heldout_look(suite=gate.evaluation.suite, by=caller(request), task_keys=keys)


def _seen(request: Request, values: dict[str, Any]) -> str:
    """The evidence digest that the caller looked at; empty when they sent none, which the service refuses."""
    tags = sent_etags(request) or [""]
    return str(values.get("evidence_digest") or tags[0].removeprefix("W/").strip('"'))


def _find_channel(project: Project, name: str) -> Channel:
    channel = Channel.objects.select_related("policy__base_model", "project").filter(project=project, name=name).first()
    if channel is None:
        known = ", ".join(Channel.objects.filter(project=project).values_list("name", flat=True)) or "none yet"
        message = f"{name!r} is unknown in project {project.slug}; channels: {known}"
        raise Problem("unknown_channel", 400, f"The channel {message}.", [{"path": "channel", "message": message}])
    return channel


def _find_run(project: Project, run_id: Any) -> Run | None:
    if run_id is None:
        return None
    run = Run.objects.filter(project=project, pk=run_id).first()
    if run is None:
        errors = [{"path": "run", "message": "is unknown in this project"}]
        raise Problem("unknown_run", 400, f"There is no run {run_id} in project {project.slug}.", errors)
    return run
