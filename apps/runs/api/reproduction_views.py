"""REST of reproductions: play a stored episode again, and what came of it."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.runs.models import Episode
from apps.runs.reproductions.models import Reproduction, ReproductionState
from apps.runs.reproductions.selectors import find_reproduction
from apps.runs.reproductions.services import request_reproduction
from apps.runs.selectors import find_episode, is_heldout
from apps.tasks.services import note_heldout_look
from ratchet.endpoints import Endpoint, ListEndpoint


class CallComparisonSerializer(serializers.Serializer[Any]):
    """One tool call then and now; texts are cut at 2,000 characters, digests are of the whole."""

    name = serializers.CharField()
    arguments = serializers.JSONField()
    same = serializers.BooleanField()
    stored = serializers.CharField()
    stored_digest = serializers.CharField()
    reproduced = serializers.CharField(allow_null=True)
    digest = serializers.CharField()


class ReproductionSerializer(serializers.ModelSerializer[Reproduction]):
    requested_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    calls = CallComparisonSerializer(many=True, read_only=True)
    stored_verdict = serializers.CharField(source="episode.verdict", read_only=True)
    stored_reward = serializers.FloatField(source="episode.reward", read_only=True, allow_null=True)
    stored_evidence = serializers.JSONField(source="episode.evidence", read_only=True)

    class Meta:
        model = Reproduction
        fields = [
            "id", "episode", "state", "outcome", "status_message", "stored_verdict", "stored_reward",
            "stored_evidence", "verdict", "reward", "reason_code", "message", "evidence", "calls",
            "num_calls_different", "stored_digest", "digest", "isolation", "limits_hit", "marked_flaky",
            "duration_seconds", "requested_by", "created_at", "finished_at",
        ]  # fmt: skip
        read_only_fields = fields


class StartedSerializer(serializers.ModelSerializer[Reproduction]):
    class Meta:
        model = Reproduction
        fields = ["id", "episode", "state", "created_at"]
        read_only_fields = fields


class EpisodeReproduce(Endpoint):
    @extend_schema(request=None, responses={202: StartedSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Play the episode's stored actions in a fresh sandbox and have it judged again.

        Another verdict puts the task into quarantine as VERIFIER_FLAKY. While one is open, asking again answers it.
        """
        episode = find_episode(request.user, pk)
        return _accepted(request_reproduction(episode=episode, by=caller(request)))


class EpisodeReproductions(ListEndpoint[Reproduction]):
    """Every time the episode was played again, newest first."""

    serializer_class = ReproductionSerializer
    queryset = Reproduction.objects.none()
    filter_backends = []

    def get_queryset(self) -> QuerySet[Reproduction]:
        episode = find_episode(self.request.user, self.kwargs["pk"])
        _note_look(self.request, episode)
        return episode.reproductions.select_related("requested_by", "episode")


class ReproductionDetail(Endpoint):
    @extend_schema(responses={200: ReproductionSerializer, 202: ReproductionSerializer})
    def get(self, request: Request, pk: str, reproduction: str) -> Response:
        """One of them; 202 while it is being played."""
        found = find_reproduction(request.user, pk, reproduction)
        _note_look(request, found.episode)
        status = 202 if found.state == ReproductionState.REQUESTED else 200
        return Response(ReproductionSerializer(found).data, status=status)


def _accepted(row: Reproduction) -> Response:
    location = f"/api/v1/episodes/{row.episode_id}/reproductions/{row.pk}/"
    return Response(StartedSerializer(row).data, status=202, headers={"Location": location})


def _note_look(request: Request, episode: Episode) -> None:
    if is_heldout(episode.group):
        task = episode.group.task
        note_heldout_look(suite=task.suite, by=caller(request), task_keys=[task.key])
