"""REST of suites and tasks."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import django_filters
import msgspec
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.accounts.permissions import Permission, find_project, has_permission
from apps.tasks import selectors, services
from apps.tasks.api import serializers
from apps.tasks.api.uploads import SuiteJSONParser, check_size, read_harbor, read_upload
from apps.tasks.models import Suite, SuiteState, Task
from apps.tasks.sources import import_harbor, import_source, suite_problem
from apps.tasks.suites.errors import SuiteError
from ratchet.bodies import read_body
from ratchet.endpoints import Endpoint, ListEndpoint
from ratchet.filters import FilterSet
from ratchet.pagination import CursorPagination
from ratchet.problems import Problem
from ratchet.streaming import JSON_LINES, json_lines, stream
from ratchet.strict_json import StrictJsonError, loads

_EXPORTED = 200  # tasks read at once of an export


class SuiteFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")

    class Meta:
        model = Suite
        fields = ["project", "slug", "state", "content_hash"]


class SuiteList(ListEndpoint[Suite]):
    serializer_class = serializers.SuiteSerializer
    queryset = Suite.objects.none()
    filterset_class = SuiteFilter
    ordering_fields = {"created_at": "id", "slug": "slug"}
    parser_classes = [SuiteJSONParser, MultiPartParser]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method == "POST":
            check_size(request)  # before anything reads the body

    def get_queryset(self) -> QuerySet[Suite]:
        return selectors.visible_suites(self.request.user)

    @extend_schema(
        request={
            "application/json": serializers.SuiteCreateSerializer,
            "multipart/form-data": serializers.SuiteCreateSerializer,
        },
        responses={202: serializers.SuiteSerializer, 200: serializers.SuiteSerializer},
    )
    def post(self, request: Request) -> Response:
        """Import a suite: 202 while its tasks are checked, 200 where the same content is there already.

        A refusal names every line and field in `errors`, e.g. `line 7: verifier.kind`; nothing was imported.
        """
        values = read_body(request, serializers.SuiteCreateSerializer, _with_header(request))
        project = find_project(request.user, values["project"], Permission.SUITE_CREATE)
        try:
            if values.get("archive") is not None:
                declared, files = read_harbor(values)
                suite = import_harbor(project=project, declared=declared, files=files, by=caller(request))
                return _accepted(request, suite)
            definition, tasks = read_upload(values)
        except SuiteError as error:
            raise suite_problem(error) from error
        suite = services.import_suite(project=project, definition=definition, tasks=tasks, by=caller(request))
        return _accepted(request, suite)


class SuiteImport(Endpoint):
    @extend_schema(
        request=serializers.SuiteImportSerializer,
        responses={202: serializers.SuiteSerializer, 200: serializers.SuiteSerializer},
    )
    def post(self, request: Request) -> Response:
        """Import a suite that comes with the platform."""
        values = read_body(request, serializers.SuiteImportSerializer)
        project = find_project(request.user, values["project"], Permission.SUITE_CREATE)
        suite = import_source(project=project, source=values["source"], by=caller(request))
        return _accepted(request, suite)


class SuiteDetail(Endpoint):
    @extend_schema(responses=serializers.SuiteDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The suite with counts by split, tag and cluster."""
        suite: Any = selectors.find_suite(request.user, pk)
        suite.representativeness = selectors.representativeness(suite)
        return Response(serializers.SuiteDetailSerializer(suite).data)


class SuiteProgress(Endpoint):
    @extend_schema(responses=serializers.CheckProgressSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """How many tasks have been checked so far."""
        suite = selectors.find_suite(request.user, pk)
        return Response(serializers.CheckProgressSerializer(selectors.check_progress(suite)).data)


class SuiteRecheck(Endpoint):
    @extend_schema(request=None, responses={202: serializers.SuiteSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Check the tasks of a failed suite again. Safe to repeat."""
        suite = selectors.find_suite(request.user, pk)
        return _accepted(request, services.recheck_suite(suite=suite, by=caller(request)))


class TaskFilter(FilterSet):
    tag = django_filters.CharFilter(field_name="tags", lookup_expr="contains", method="with_tag")

    class Meta:
        model = Task
        fields = ["split", "state", "cluster", "quarantine_code", "tag"]

    def with_tag(self, tasks: QuerySet[Task], name: str, value: str) -> QuerySet[Task]:
        return tasks.filter(tags__contains=[value])


class TaskPagination(CursorPagination):
    ordering = "position"


class TaskList(ListEndpoint[Task]):
    """Tasks in order of import. Prompts of held-out tasks need heldout:read, and each page with them is audited."""

    serializer_class = serializers.TaskSerializer
    queryset = Task.objects.none()
    filterset_class = TaskFilter
    pagination_class = TaskPagination

    def get_queryset(self) -> QuerySet[Task]:
        suite = selectors.find_suite(self.request.user, self.kwargs["pk"])
        return selectors.visible_tasks(self.request.user).filter(suite=suite)

    def represent(self, rows: Sequence[Task]) -> Sequence[Any]:
        context = {**self.get_serializer_context(), "show_heldout": _show_heldout(self.request, rows)}
        shown: Any = serializers.TaskSerializer(rows, many=True, context=context).data
        return list(shown)


class TaskExport(Endpoint):
    streams = True

    @extend_schema(responses={(200, "application/x-ndjson"): OpenApiTypes.STR})
    def get(self, request: Request, pk: str) -> StreamingHttpResponse:
        """Every task with its content as JSON lines, streamed. Content of held-out tasks needs heldout:read (else it is
        null), and is audited."""
        suite = selectors.find_suite(request.user, pk)
        return stream(request, json_lines(_exported(request, suite)), JSON_LINES, f"{suite.slug}-{suite.version}.jsonl")


def _exported(request: Request, suite: Suite) -> Iterator[dict[str, Any]]:
    rows = selectors.visible_tasks(request.user).filter(suite=suite).iterator(chunk_size=_EXPORTED)
    while part := list(islice(rows, _EXPORTED)):
        show = _show_heldout(request, part)
        for task in part:
            shown: Any = task
            readable = show or not selectors.is_protected(task.split)
            shown.content = msgspec.to_builtins(selectors.load_bundle(task)) if readable else None
            yield serializers.TaskDetailSerializer(shown, context={"show_heldout": show}).data


class TaskDetail(Endpoint):
    @extend_schema(responses=serializers.TaskDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The task with its content; that of a held-out task needs heldout:read and is audited."""
        task: Any = selectors.find_task(request.user, pk)
        show = _show_heldout(request, [task])
        readable = selectors.may_read_content(request.user, task)
        task.content = msgspec.to_builtins(selectors.load_bundle(task)) if readable else None
        return Response(serializers.TaskDetailSerializer(task, context={"show_heldout": show}).data)


class TaskRelease(Endpoint):
    @extend_schema(request=serializers.ReleaseSerializer, responses=serializers.TaskSerializer)
    def post(self, request: Request, pk: str) -> Response:
        """Take a task out of quarantine."""
        task = selectors.find_task(request.user, pk)
        values = read_body(request, serializers.ReleaseSerializer)
        task = services.release_task(task=task, by=caller(request), reason=values["reason"])
        return Response(serializers.TaskSerializer(task, context={"show_heldout": False}).data)


class TaskPutBack(Endpoint):
    @extend_schema(request=serializers.PutBackSerializer, responses=serializers.TaskSerializer)
    def post(self, request: Request, pk: str) -> Response:
        """Quarantine a task again that a person had released."""
        task = selectors.find_task(request.user, pk)
        values = read_body(request, serializers.PutBackSerializer)
        task = services.put_back_task(task=task, by=caller(request), reason=values["reason"])
        return Response(serializers.TaskSerializer(task, context={"show_heldout": False}).data)


def _show_heldout(request: Request, tasks: Sequence[Task]) -> bool:
    """Whether held-out content among the tasks is shown; if so, that is audited first."""
    heldout = [task for task in tasks if selectors.is_protected(task.split)]
    if not heldout:
        return False
    suite = heldout[0].suite
    if not has_permission(request.user, Permission.HELDOUT_READ, suite.project):
        return False
    services.note_heldout_look(suite=suite, by=caller(request), task_keys=[task.key for task in heldout])
    return True


def _with_header(request: Request) -> dict[str, Any]:
    """The request's data; a multipart header is JSON text, in a field or a file."""
    if not isinstance(request.data, Mapping):
        return {}
    data = {name: request.data[name] for name in request.data}
    if "tool_files" in request.FILES:
        data["tool_files"] = request.FILES.getlist("tool_files")
    header = data.get("header")
    if header is not None and hasattr(header, "read"):
        header = header.read().decode("utf-8", errors="replace")
    if isinstance(header, str):
        try:
            data["header"] = loads(header)
        except StrictJsonError as error:
            raise Problem(
                "invalid", 400, "The suite was not imported.", [{"path": "header", "message": str(error)}]
            ) from error
    return data


def _accepted(request: Request, suite: Suite) -> Response:
    counted = selectors.find_suite(request.user, suite.pk)
    status = 202 if counted.state == SuiteState.CHECKING else 200
    location = f"/api/v1/suites/{suite.pk}/"
    return Response(serializers.SuiteSerializer(counted).data, status=status, headers={"Location": location})
