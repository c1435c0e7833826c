"""REST of runs: submit, read, control, export."""

from collections.abc import Callable

import django_filters
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.accounts.permissions import Permission, find_project, require
from apps.runs import selectors, services
from apps.runs.api import serializers
from apps.runs.api.spec_errors import check_spec
from apps.runs.models import Batch, Checkpoint, Group, IngestedReport, Run, RunEvent
from apps.runs.transcripts import export_episodes
from ratchet.bodies import flag, flag_parameter, number, read_body
from ratchet.endpoints import Endpoint, ListEndpoint
from ratchet.filters import FilterSet, WholeFilter
from ratchet.pagination import CursorPagination
from ratchet.streaming import JSON_LINES, stream

_MAX_TASKS = 50


class RunFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")
    suite = django_filters.CharFilter(field_name="suite__slug")
    policy = django_filters.CharFilter(field_name="policy__slug")
    state = django_filters.MultipleChoiceFilter(choices=Run._meta.get_field("state").choices)

    class Meta:
        model = Run
        fields = ["project", "suite", "policy", "state", "number"]


class RunList(ListEndpoint[Run]):
    """Runs, newest first."""

    serializer_class = serializers.RunSerializer
    queryset = Run.objects.none()
    filterset_class = RunFilter
    ordering_fields = {"created_at": "id", "number": "number", "name": "name"}

    def get_queryset(self) -> QuerySet[Run]:
        return selectors.visible_runs(self.request.user).only(*serializers.RUN_COLUMNS)

    @extend_schema(request=serializers.RunCreateSerializer, responses={202: serializers.RunDetailSerializer})
    def post(self, request: Request) -> Response:
        """Submit a run. A spec that cannot be used is refused with the path of every wrong field.

        Send an `Idempotency-Key` header, and the same request twice makes one run.
        """
        values = read_body(request, serializers.RunCreateSerializer)
        project = find_project(request.user, values["project"], Permission.RUN_CREATE)
        check_spec(values["spec"], lambda: services.unknown_names(project, values["spec"]))
        run = services.submit_run(project=project, spec=values["spec"], by=caller(request))
        return _accepted(run)


class RunValidate(Endpoint):
    @extend_schema(request=serializers.RunCreateSerializer, responses=serializers.ValidatedSpecSerializer)
    def post(self, request: Request) -> Response:
        """A dry run of a submission: the same refusals, with every wrong field, and nothing is stored.

        The answer is the spec as it would run: defaults filled in, the version of the suite named.
        """
        values = read_body(request, serializers.RunCreateSerializer)
        project = find_project(request.user, values["project"], Permission.RUN_CREATE)
        check_spec(values["spec"], lambda: services.unknown_names(project, values["spec"]))
        wanted = services.check_submission(project=project, spec=values["spec"], by=caller(request))
        return Response(serializers.ValidatedSpecSerializer(wanted).data)


class RunDetail(Endpoint):
    @extend_schema(responses=serializers.RunDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The run with its spec and trainer attempts."""
        return Response(serializers.RunDetailSerializer(selectors.find_run(request.user, pk)).data)


class _RunAction(Endpoint):
    """An action on a run: 202 with the run; repeating it changes nothing."""

    # Not called `action`: that is a viewset attribute to the schema generator.
    verb: Callable[..., Run]

    @extend_schema(request=None, responses={202: serializers.RunDetailSerializer})
    def post(self, request: Request, pk: str) -> Response:
        run = selectors.find_run(request.user, pk)
        return _accepted(type(self).verb(run=run, by=caller(request)))


class RunPause(_RunAction):
    verb = staticmethod(services.pause_run)


class RunResume(_RunAction):
    verb = staticmethod(services.resume_run)


class RunRetry(_RunAction):
    verb = staticmethod(services.retry_run)


class RunCancel(Endpoint):
    @extend_schema(request=serializers.ReasonSerializer, responses={202: serializers.RunDetailSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Cancel the run: open groups end as cancelled, published checkpoints stay."""
        run = selectors.find_run(request.user, pk)
        values = read_body(request, serializers.ReasonSerializer)
        return _accepted(services.cancel_run(run=run, by=caller(request), reason=values["reason"]))


class EventPagination(CursorPagination):
    ordering = "id"
    page_size = 200
    max_page_size = 1000


@extend_schema(parameters=[OpenApiParameter("after", OpenApiTypes.INT, description="Only events with a larger id.")])
class RunEvents(ListEndpoint[RunEvent]):
    """What happened, oldest first."""

    serializer_class = serializers.RunEventSerializer
    queryset = RunEvent.objects.none()
    pagination_class = EventPagination
    filter_backends = []

    def get_queryset(self) -> QuerySet[RunEvent]:
        run = selectors.find_run(self.request.user, self.kwargs["pk"])
        return run.events.filter(id__gt=number(self.request, "after", 0)).order_by("id")


class RunLedger(Endpoint):
    @extend_schema(responses=serializers.LedgerSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """Where every admitted group is, and whether the counts add up."""
        run = selectors.find_run(request.user, pk)
        counts = selectors.ledger(run)
        body = {name: getattr(counts, name) for name in ("admitted", "open", "closed", "num_open", "num_closed")}
        body |= {
            "adds_up": counts.adds_up,
            "refused_reports": IngestedReport.objects.filter(run_id=run.pk).exclude(refused="").count(),
            "stale_tasks": selectors.stale_tasks(run),
        }
        return Response(serializers.LedgerSerializer(body).data)


class RunLongTail(Endpoint):
    @extend_schema(responses=serializers.LongTailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """What the slowest groups, retries and cancelled stragglers cost, in all and by task."""
        tail = selectors.long_tail(selectors.find_run(request.user, pk))
        tail.tasks = tail.tasks[:_MAX_TASKS]
        keys = selectors.task_keys(cost.task for cost in tail.tasks)
        for cost in tail.tasks:
            cost.key = keys[cost.task]
        return Response(serializers.LongTailSerializer(tail).data)


class IndexPagination(CursorPagination):
    ordering = "index"


class VersionPagination(CursorPagination):
    ordering = "version"


class RunBatches(ListEndpoint[Batch]):
    """Groups that were trained together, oldest first."""

    serializer_class = serializers.BatchSerializer
    queryset = Batch.objects.none()
    pagination_class = IndexPagination
    filter_backends = []

    def get_queryset(self) -> QuerySet[Batch]:
        return selectors.find_run(self.request.user, self.kwargs["pk"]).batches.order_by("index", "id")


class RunCheckpoints(ListEndpoint[Checkpoint]):
    """Durable versions, oldest first."""

    serializer_class = serializers.CheckpointSerializer
    queryset = Checkpoint.objects.none()
    pagination_class = VersionPagination
    filter_backends = []

    def get_queryset(self) -> QuerySet[Checkpoint]:
        return selectors.checkpoints_of(selectors.find_run(self.request.user, self.kwargs["pk"]))


class GroupFilter(FilterSet):
    step = WholeFilter(method="in_step")
    task = django_filters.UUIDFilter(field_name="task_id")  # an id, so that guessing tells nothing

    class Meta:
        model = Group
        fields = ["state", "outcome", "policy_version"]

    def in_step(self, groups: QuerySet[Group], name: str, value: int) -> QuerySet[Group]:
        return groups.filter(batch__index=int(value) - 1)


class RunGroups(ListEndpoint[Group]):
    """Groups of the run, newest first."""

    serializer_class = serializers.GroupSerializer
    queryset = Group.objects.none()
    pagination_class = CursorPagination
    filterset_class = GroupFilter

    def get_queryset(self) -> QuerySet[Group]:
        run = selectors.find_run(self.request.user, self.kwargs["pk"])
        groups = selectors.visible_groups(self.request.user).filter(run=run)
        return groups.select_related(None).select_related("project", "task", "batch").only(*serializers.GROUP_COLUMNS)


class RunEpisodes(Endpoint):
    streams = True

    @extend_schema(
        parameters=[flag_parameter("transcripts", "With turns and sandbox logs.")],
        responses={(200, "application/x-ndjson"): OpenApiTypes.STR},
    )
    def get(self, request: Request, pk: str) -> StreamingHttpResponse:
        """All episodes of the run as JSON lines, streamed."""
        run = selectors.find_run(request.user, pk)
        require(request.user, Permission.EPISODE_READ, run.project)
        transcripts = flag(request, "transcripts")
        lines = export_episodes(run, transcripts=transcripts)
        return stream(request, lines, JSON_LINES, f"run-{run.number}-episodes.jsonl")


def _accepted(run: Run) -> Response:
    body = serializers.RunDetailSerializer(run).data
    return Response(body, status=202, headers={"Location": f"/api/v1/runs/{run.pk}/"})
