"""REST of groups and episodes down to their tokens."""

from collections.abc import Sequence
from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.runs import selectors
from apps.runs.api import serializers
from apps.runs.models import Episode, Group
from apps.runs.transcripts import episode_tokens, episode_transcript
from apps.tasks.services import note_heldout_look
from gpu_workers.contracts.groups import jsonable
from ratchet.bodies import flag, flag_parameter
from ratchet.endpoints import Endpoint, ListEndpoint
from ratchet.filters import FilterSet


class EpisodeFilter(FilterSet):
    project = django_filters.CharFilter(field_name="group__project__slug")
    run = django_filters.UUIDFilter(field_name="group__run_id")
    task = django_filters.UUIDFilter(field_name="group__task_id")
    group = django_filters.UUIDFilter(field_name="group_id")

    class Meta:
        model = Episode
        fields = ["project", "run", "verdict", "success", "reason_code", "boundary", "tamper"]


class EpisodeList(ListEndpoint[Episode]):
    """Episodes, newest first; those of held-out tasks only for who may read them."""

    serializer_class = serializers.EpisodeSerializer
    queryset = Episode.objects.none()
    filterset_class = EpisodeFilter
    ordering_fields = {"created_at": "id", "total_seconds": "total_seconds"}

    def get_queryset(self) -> QuerySet[Episode]:
        rows = selectors.visible_episodes(self.request.user).select_related(None).select_related("group__task")
        return rows.only(*serializers.EPISODE_FIELDS, *("group__task__" + name for name in ("split", "key", "suite")))

    def represent(self, rows: Sequence[Episode]) -> Sequence[Any]:
        _note_looks(self.request, [episode.group for episode in rows])
        return super().represent(rows)


class GroupDetail(Endpoint):
    @extend_schema(responses=serializers.GroupDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The group with its episodes. On a held-out task this needs heldout:read, and the look is audited."""
        group = selectors.find_group(request.user, pk)
        _note_looks(request, [group])
        return Response(serializers.GroupDetailSerializer(group).data)


class EpisodeDetail(Endpoint):
    @extend_schema(
        parameters=[flag_parameter("tokens", "With token ids, mask, log-probs, versions.")],
        responses=serializers.EpisodeDetailSerializer,
    )
    def get(self, request: Request, pk: str) -> Response:
        """The episode with its turns, tool calls, verdict and sandbox log; with `?tokens=1` down to its tokens."""
        episode = selectors.find_episode(request.user, pk)
        _note_looks(request, [episode.group])
        body = dict(serializers.EpisodeSerializer(episode).data)
        body["group"] = serializers.GroupSerializer(episode.group).data
        body["transcript"] = jsonable(episode_transcript(episode))
        body["tokens"] = episode_tokens(episode) if flag(request, "tokens") else None
        return Response(body)


def _note_looks(request: Request, groups: list[Group]) -> None:
    """Audit who was shown held-out content, once per suite."""
    shown: dict[object, list[Group]] = {}
    for group in groups:
        if selectors.is_heldout(group):
            shown.setdefault(group.task.suite_id, []).append(group)
    for members in shown.values():
        keys = sorted({group.task.key for group in members})
        note_heldout_look(suite=members[0].task.suite, by=caller(request), task_keys=keys)
