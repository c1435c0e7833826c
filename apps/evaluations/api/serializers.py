"""JSON of evaluations, their results, gate policies and the ledger of held-out looks."""

from typing import Any

from rest_framework import serializers

from apps.evaluations.models import Evaluation, EvaluationArm, EvaluationPurpose, GatePolicy, HeldoutLook
from apps.evaluations.services import MAX_SAMPLES, MAX_TASKS
from apps.tasks.models import SplitName


class ProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField()
    total = serializers.IntegerField()


class ArmSerializer(serializers.ModelSerializer[EvaluationArm]):
    policy = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    checkpoint_version = serializers.IntegerField(
        source="checkpoint.version", read_only=True, default=None, allow_null=True
    )

    class Meta:
        model = EvaluationArm
        fields = ["label", "policy", "checkpoint_version", "num_shots"]


class EvaluationSerializer(serializers.ModelSerializer[Evaluation]):
    """`status_message` says what it waits for; `progress` counts groups, one per task and arm."""

    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    suite = serializers.CharField(read_only=True)
    suite_id = serializers.UUIDField(read_only=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    arms = ArmSerializer(many=True, read_only=True)
    progress = serializers.SerializerMethodField()

    class Meta:
        model = Evaluation
        fields = [
            "id", "project", "suite", "suite_id", "split", "purpose", "run", "state", "status_message", "samples",
            "sampling", "plan_hash", "arms", "progress", "created_by", "created_at", "started_at", "finished_at",
        ]  # fmt: skip

    def get_progress(self, evaluation: Any) -> dict[str, int]:
        return {"done": getattr(evaluation, "num_closed", 0), "total": getattr(evaluation, "num_groups", 0)}


class SamplingSerializer(serializers.Serializer[Any]):
    """Temperature 0 is greedy."""

    max_new_tokens = serializers.IntegerField(min_value=1, max_value=4096, required=False)
    temperature = serializers.FloatField(min_value=0, max_value=5, required=False)
    top_p = serializers.FloatField(min_value=0.01, max_value=1, required=False)
    seed = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False)


class EvaluationCreateSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    suite = serializers.CharField(help_text="slug (newest ready version) or slug@version")
    split = serializers.ChoiceField(SplitName.choices)
    purpose = serializers.ChoiceField(
        [choice for choice in EvaluationPurpose.choices if choice[0] in ("baseline", "dev")], default="baseline"
    )
    policies = serializers.ListField(child=serializers.CharField(), min_length=1, max_length=8, help_text="slugs")
    samples = serializers.IntegerField(min_value=1, max_value=MAX_SAMPLES, default=1)
    sampling = SamplingSerializer(required=False)
    max_tasks = serializers.IntegerField(min_value=0, max_value=MAX_TASKS, default=0, help_text="0: all")


class PercentilesSerializer(serializers.Serializer[Any]):
    p50 = serializers.FloatField(allow_null=True)
    p90 = serializers.FloatField(allow_null=True)
    p95 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)


class ClusterResultSerializer(serializers.Serializer[Any]):
    cluster = serializers.CharField()
    n = serializers.IntegerField()
    success = serializers.FloatField()


class ArmResultSerializer(serializers.Serializer[Any]):
    """Measured from stored episodes. `low` and `high`: 95 % Wilson interval of `success`."""

    label = serializers.CharField()  # type: ignore[assignment]
    policy = serializers.CharField()
    policy_id = serializers.UUIDField(allow_null=True)
    kind = serializers.CharField()
    num_shots = serializers.IntegerField()
    num_planned = serializers.IntegerField()
    n = serializers.IntegerField()
    num_missing = serializers.IntegerField()
    num_tasks = serializers.IntegerField()
    num_success = serializers.IntegerField()
    success = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)
    invalid_call_share = serializers.FloatField(allow_null=True)
    tamper_share = serializers.FloatField(allow_null=True)
    latency_seconds = PercentilesSerializer()
    mean_tokens = serializers.FloatField(allow_null=True)
    mean_sampled_tokens = serializers.FloatField(allow_null=True)
    mean_turns = serializers.FloatField(allow_null=True)
    mean_tool_calls = serializers.FloatField(allow_null=True)
    episode_seconds = serializers.FloatField()
    engine_seconds = serializers.FloatField()
    train_cpu_seconds = serializers.FloatField(allow_null=True)
    reasons = serializers.DictField(child=serializers.IntegerField())
    clusters = ClusterResultSerializer(many=True)


class EpisodeOutcomeSerializer(serializers.Serializer[Any]):
    episode_id = serializers.UUIDField()
    group_id = serializers.UUIDField()
    success = serializers.BooleanField()
    reason_code = serializers.CharField()
    answer = serializers.CharField()


class TaskOutcomeSerializer(serializers.Serializer[Any]):
    task_id = serializers.UUIDField()
    key = serializers.CharField()
    cluster = serializers.CharField()
    tags = serializers.ListField(child=serializers.CharField())
    arms = serializers.ListField(child=EpisodeOutcomeSerializer(many=True), help_text="in the order of `arms`")


class ResultsSerializer(serializers.Serializer[Any]):
    """`tasks` is null without the right to the content of the split's tasks."""

    id = serializers.UUIDField(source="evaluation.pk")
    state = serializers.CharField(source="evaluation.state")
    arms = ArmResultSerializer(many=True)
    tasks = TaskOutcomeSerializer(many=True, allow_null=True)


class ComparedArmSerializer(serializers.Serializer[Any]):
    """`difference` is this arm's success minus the base's, by task, with its 95 % interval (clustered, CR2).

    `trusted`: five clusters or more, none with over a third of the tasks. `p_sign`: exact sign test over tasks.
    `p_bootstrap`: wild cluster bootstrap. `detectable`: the difference that such an evaluation finds in 80 %.
    """

    label = serializers.CharField()  # type: ignore[assignment]  # a field's name
    num_tasks = serializers.IntegerField(help_text="with a verdict in both")
    num_unpaired = serializers.IntegerField()
    num_better = serializers.IntegerField()
    num_worse = serializers.IntegerField()
    difference = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)
    num_clusters = serializers.IntegerField()
    trusted = serializers.BooleanField()
    p_sign = serializers.FloatField(allow_null=True)
    p_bootstrap = serializers.FloatField(allow_null=True)
    detectable = serializers.FloatField(allow_null=True)


class ComparisonSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    state = serializers.CharField()
    base = serializers.CharField()
    arms = ComparedArmSerializer(many=True, help_text="all others, in their order")


class GatePolicySerializer(serializers.ModelSerializer[GatePolicy]):
    """`metrics`: name to {required, margin, ceiling}; margins are shares, ratios to the incumbent, or turns."""

    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    metrics = serializers.DictField(child=serializers.DictField(), read_only=True)

    class Meta:
        model = GatePolicy
        fields = [
            "id", "project", "slug", "version", "alpha", "min_effect", "metrics", "max_missing_share", "created_at",
        ]  # fmt: skip


class GatePolicyCreateSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    slug = serializers.SlugField(max_length=50)
    alpha = serializers.FloatField(default=0.05)
    min_effect = serializers.FloatField(default=0.0)
    metrics = serializers.DictField(child=serializers.DictField(), required=False, help_text="absent: the default")
    max_missing_share = serializers.FloatField(default=0.02)


class LookSerializer(serializers.ModelSerializer[HeldoutLook]):
    class Meta:
        model = HeldoutLook
        fields = ["number", "alpha", "verdict", "evaluation", "at"]


class HeldoutLedgerSerializer(serializers.Serializer[Any]):
    """What looks at one suite's held-out set have spent of alpha."""

    suite = serializers.CharField()
    suite_id = serializers.UUIDField(source="suite.pk")
    alpha = serializers.FloatField()
    spent = serializers.FloatField()
    left = serializers.FloatField()
    next_alpha = serializers.FloatField()
    looks = LookSerializer(many=True)


class GapSerializer(serializers.Serializer[Any]):
    """`rate` and its 95 % interval are of the episodes that the training verifier passed; null: none."""

    source = serializers.ChoiceField(choices=["training", "evaluation"])  # type: ignore[assignment]  # a field's name
    label = serializers.CharField()  # type: ignore[assignment]  # a field's name
    run = serializers.UUIDField(source="run_id", allow_null=True)
    n = serializers.IntegerField()
    num_passed = serializers.IntegerField()
    num_gap = serializers.IntegerField()
    num_reverse = serializers.IntegerField()
    num_undecided = serializers.IntegerField()
    num_clusters = serializers.IntegerField()
    rate = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)


class FalsePassSerializer(serializers.Serializer[Any]):
    """An episode that the training verifier passed and the audit verifier failed."""

    id = serializers.UUIDField()
    task = serializers.CharField(source="group.task.key")
    audit_reason_code = serializers.CharField()


class SuiteGapSerializer(serializers.Serializer[Any]):
    rows = GapSerializer(many=True)
    examples = FalsePassSerializer(many=True)
    num_examples = serializers.IntegerField()
