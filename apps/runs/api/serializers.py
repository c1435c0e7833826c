"""What runs, groups and episodes look like in the API."""

from typing import Any

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.runs.models import Batch, Checkpoint, Episode, Group, Run, RunAttempt, RunEvent


class RunCreateSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField(help_text="Slug of the project.")
    spec = serializers.JSONField(help_text="RunSpec; see the guide. Unknown fields are refused with their path.")


class ValidatedSpecSerializer(serializers.Serializer[Any]):
    """What a submission of the spec would run."""

    spec = serializers.SerializerMethodField()
    spec_hash = serializers.CharField()
    suite = serializers.CharField()
    policy = serializers.CharField(source="policy.slug")

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_spec(self, wanted: Any) -> Any:
        return msgspec.to_builtins(wanted.spec)


class ReasonSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=500)


class AttemptSerializer(serializers.ModelSerializer[RunAttempt]):
    class Meta:
        model = RunAttempt
        fields = [
            "number", "state", "worker", "activity", "resume_from", "resumed_version", "version", "finished_version",
            "heartbeat_at", "cpu_seconds", "memory_bytes", "created_at", "started_at", "ended_at", "ended_code",
            "ended_reason",
        ]  # fmt: skip
        read_only_fields = fields


class RunSerializer(serializers.ModelSerializer[Run]):
    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    suite = serializers.StringRelatedField[Any](help_text="slug@version")
    policy = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    result = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True, allow_null=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = Run
        fields = [
            "id", "project", "number", "name", "suite", "policy", "result", "retry_of", "state", "status_code",
            "status_message", "step", "total_steps", "version", "confirmed_version", "last_good_version",
            "train_cpu_seconds", "spec_hash", "whole_weights",
            "created_by", "created_at", "started_at", "finished_at",
        ]  # fmt: skip
        read_only_fields = fields


# What a list reads of a row and of those it names: specs and environments of joined rows would be decoded in vain.
RUN_COLUMNS = [*RunSerializer.Meta.fields, "project__slug", "suite__slug", "suite__version", "policy__slug",
               "policy__base_model__id", "result__slug", "created_by__username"]  # fmt: skip


class FleetLeaseSerializer(serializers.Serializer[Any]):
    """A turn on the engines of full runs."""

    requested_at = serializers.DateTimeField()
    granted_at = serializers.DateTimeField(allow_null=True, help_text="null: it waits for its turn")
    released_at = serializers.DateTimeField(allow_null=True, help_text="null: it waits, or holds the engines")


class RunDetailSerializer(RunSerializer):
    spec = serializers.JSONField(read_only=True)
    attempts = AttemptSerializer(many=True, read_only=True)
    fleet_lease = serializers.SerializerMethodField(help_text="of a run that trains every weight; else null")

    class Meta(RunSerializer.Meta):
        fields = [*RunSerializer.Meta.fields, "spec", "attempts", "fleet_lease"]
        read_only_fields = fields

    @extend_schema_field(FleetLeaseSerializer(allow_null=True))
    def get_fleet_lease(self, run: Run) -> Any:
        lease = run.leases.order_by("-id").first() if run.whole_weights else None
        return FleetLeaseSerializer(lease).data if lease else None


class RunEventSerializer(serializers.ModelSerializer[RunEvent]):
    class Meta:
        model = RunEvent
        fields = ["id", "at", "level", "code", "message", "data"]
        read_only_fields = fields


class CheckpointSerializer(serializers.ModelSerializer[Checkpoint]):
    adapter_name = serializers.CharField(source="engine_name", read_only=True)

    class Meta:
        model = Checkpoint
        fields = [
            "id", "version", "attempt", "adapter_name", "uri", "adapter", "sha256", "num_bytes", "batch_ids",
            "install_state", "dev_success", "dev_n", "train_cpu_seconds", "created_at",
        ]  # fmt: skip
        read_only_fields = fields


class BatchSerializer(serializers.ModelSerializer[Batch]):
    class Meta:
        model = Batch
        fields = ["id", "index", "state", "attempt", "created_at", "trained_at"]
        read_only_fields = fields


class TaskDropsSerializer(serializers.Serializer[Any]):
    task_id = serializers.UUIDField()
    key = serializers.CharField()
    num_stale = serializers.IntegerField()
    num_trained = serializers.IntegerField()


class LedgerSerializer(serializers.Serializer[Any]):
    """Every admitted group is open or ended in exactly one outcome."""

    admitted = serializers.IntegerField()
    open = serializers.DictField(child=serializers.IntegerField())
    closed = serializers.DictField(child=serializers.IntegerField())
    num_open = serializers.IntegerField()
    num_closed = serializers.IntegerField()
    adds_up = serializers.BooleanField()
    refused_reports = serializers.IntegerField(help_text="Reports of dead attempts and late results.")
    stale_tasks = TaskDropsSerializer(many=True)


class TaskCostSerializer(serializers.Serializer[Any]):
    task_id = serializers.UUIDField(source="task")
    key = serializers.CharField()
    num_groups = serializers.IntegerField()
    num_retries = serializers.IntegerField()
    num_cancelled = serializers.IntegerField()
    total_seconds = serializers.FloatField()
    seconds = serializers.FloatField(help_text="Of results that were stored.")
    slowest_seconds = serializers.FloatField(help_text="Of its groups among the slowest of the run.")
    retry_seconds = serializers.FloatField()
    cancelled_seconds = serializers.FloatField()


class ArmCostSerializer(serializers.Serializer[Any]):
    """Stragglers that a draw let finish (wait) or cancelled (abort); those that no draw decided are in neither."""

    arm = serializers.CharField()
    num_groups = serializers.IntegerField()
    seconds = serializers.FloatField()
    recovery_seconds = serializers.FloatField(help_text="Of them after they were found to be stragglers.")
    num_passed = serializers.IntegerField(help_text="Episodes whose verdict is pass.")


class LongTailSerializer(serializers.Serializer[Any]):
    """Episode-seconds: a second of one episode in flight, whether it waits for tokens, a tool or a verdict."""

    num_groups = serializers.IntegerField()
    num_slowest = serializers.IntegerField(help_text="A tenth of the finished groups, the slowest.")
    total_seconds = serializers.FloatField()
    slowest_seconds = serializers.FloatField()
    retry_seconds = serializers.FloatField(help_text="Of dispatches that failed or were never heard of, at most.")
    cancelled_seconds = serializers.FloatField(help_text="Of groups that were given up while they ran.")
    tasks = TaskCostSerializer(many=True, help_text="Most expensive first, at most 50.")
    arms = ArmCostSerializer(many=True)


EPISODE_FIELDS = [
    "id", "index", "seed", "verdict", "success", "reward", "reason_code", "message", "evidence", "boundary",
    "stop_reason", "answer", "tamper", "flags", "num_turns", "num_tool_calls", "num_invalid_calls", "num_prompt_tokens",
    "num_sampled_tokens", "num_total_tokens", "min_version", "max_version", "mean_logprob", "engine_seconds",
    "queue_seconds", "tool_seconds", "verifier_seconds", "total_seconds", "isolation", "limits_hit", "verifier_hash",
    "audit_verdict", "audit_score", "audit_reason_code", "audit_message", "audit_hash", "created_at",
]  # fmt: skip


class EpisodeSerializer(serializers.ModelSerializer[Episode]):
    group = serializers.PrimaryKeyRelatedField[Any](read_only=True)

    class Meta:
        model = Episode
        fields = ["group", *EPISODE_FIELDS]
        read_only_fields = fields


class GroupSerializer(serializers.ModelSerializer[Group]):
    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    task_key = serializers.CharField(source="task.key", read_only=True)
    task_hash = serializers.CharField(source="task.task_hash", read_only=True)
    split = serializers.CharField(source="task.split", read_only=True)
    step = serializers.SerializerMethodField(help_text="Step it was trained in.")

    class Meta:
        model = Group
        fields = [
            "id", "project", "run", "number", "task", "task_key", "task_hash", "split", "purpose", "state", "outcome",
            "outcome_reason", "boundary", "size", "policy_adapter", "policy_weights", "policy_version", "num_shots",
            "sampling", "dispatch", "requeue_of", "straggler", "propensity", "retry_seconds", "cancelled_seconds",
            "batch", "step", "age", "min_version", "max_version", "reward_mean",
            "reward_std", "num_scored", "duration_seconds", "created_at", "dispatched_at", "started_at", "finished_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_step(self, group: Group) -> int | None:
        return group.batch.index + 1 if group.batch else None


GROUP_COLUMNS = [
    *(name for name in GroupSerializer.Meta.fields if name not in ("task_key", "task_hash", "split", "step")),
    "project__slug", "task__key", "task__task_hash", "task__split", "batch__index",
]  # fmt: skip


class GroupDetailSerializer(GroupSerializer):
    episodes = EpisodeSerializer(many=True, read_only=True)

    class Meta(GroupSerializer.Meta):
        fields = [*GroupSerializer.Meta.fields, "episodes"]
        read_only_fields = fields


class TokensSerializer(serializers.Serializer[Any]):
    """One entry per token, prompt first; null where the policy did not sample it."""

    ids = serializers.ListField(child=serializers.IntegerField())
    mask = serializers.ListField(child=serializers.IntegerField())
    logprobs = serializers.ListField(child=serializers.FloatField(allow_null=True))
    versions = serializers.ListField(child=serializers.IntegerField(allow_null=True))


class EpisodeDetailSerializer(EpisodeSerializer):
    group = GroupSerializer(read_only=True)  # type: ignore[assignment]
    transcript = serializers.JSONField(read_only=True, help_text="Turns with token spans, tool calls, sandbox log.")
    tokens = TokensSerializer(read_only=True, allow_null=True, help_text="null unless asked for")

    class Meta(EpisodeSerializer.Meta):
        fields = [*EpisodeSerializer.Meta.fields, "transcript", "tokens"]
        read_only_fields = fields
