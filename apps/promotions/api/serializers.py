"""JSON of gates, their reports and decisions."""

from typing import Any

from rest_framework import serializers

from apps.evaluations.api.serializers import HeldoutLedgerSerializer, ProgressSerializer, SamplingSerializer
from apps.evaluations.services import MAX_SAMPLES
from apps.promotions.models import Decision, DecisionKind, Gate


class DecisionSerializer(serializers.ModelSerializer[Decision]):
    """`effective_at` is null while an override waits for its second approver."""

    by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    second_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = Decision
        fields = ["id", "kind", "by", "second_by", "reason", "evidence_digest", "effective_at", "created_at"]


class GateSerializer(serializers.ModelSerializer[Gate]):
    """`headline` is the verdict in words; send `evidence_digest` back with a decision."""

    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    channel = serializers.SlugRelatedField[Any](slug_field="name", read_only=True)
    incumbent = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    candidate = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    submitted_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    gate_policy = serializers.CharField(read_only=True)
    suite = serializers.CharField(source="evaluation.suite", read_only=True)
    decision = DecisionSerializer(read_only=True, default=None, allow_null=True)
    regression_result = serializers.DictField(read_only=True)
    progress = serializers.SerializerMethodField()
    page = serializers.SerializerMethodField()

    class Meta:
        model = Gate
        fields = [
            "id", "number", "project", "channel", "incumbent", "candidate", "run", "evaluation", "suite", "gate_policy",
            "state", "verdict", "headline", "evidence_digest", "submitted_by", "created_at", "computed_at", "decision",
            "regression", "regression_result", "progress", "page",
        ]  # fmt: skip

    def get_progress(self, gate: Any) -> dict[str, int]:
        return {"done": gate.num_closed, "total": gate.num_groups}

    def get_page(self, gate: Gate) -> str:
        return f"/gates/{gate.pk}/"


class AllowedSerializer(serializers.Serializer[Any]):
    approve = serializers.BooleanField()
    reject = serializers.BooleanField()
    override = serializers.BooleanField()
    confirm = serializers.BooleanField()
    rollback = serializers.BooleanField()
    why_not = serializers.CharField()


class GateDetailSerializer(GateSerializer):
    """`report` has the tiles, arms and comparisons; its `tasks` only for who may read held-out content."""

    report = serializers.DictField()
    allowed = AllowedSerializer()
    ledger = HeldoutLedgerSerializer()

    class Meta(GateSerializer.Meta):
        fields = [*GateSerializer.Meta.fields, "report", "allowed", "ledger"]


class EvidenceSerializer(serializers.Serializer[Any]):
    """`holds`: the stored episodes are still those the verdict was computed from."""

    evidence_digest = serializers.CharField()
    plan_hash = serializers.CharField()
    holds = serializers.BooleanField()
    progress = ProgressSerializer()
    report = serializers.DictField()


class GateCreateSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    channel = serializers.SlugField(default="production")
    candidate = serializers.CharField(help_text="slug of a policy")
    suite = serializers.CharField(help_text="slug (newest ready version) or slug@version")
    gate_policy = serializers.CharField(default="default", help_text="slug (newest) or slug@version")
    samples = serializers.IntegerField(min_value=1, max_value=MAX_SAMPLES, default=1)
    sampling = SamplingSerializer(required=False)
    baselines = serializers.ListField(
        child=serializers.CharField(), default=list, help_text="slugs of policies to run beside; they gate nothing"
    )
    run = serializers.UUIDField(required=False, allow_null=True)


class GatePlanSerializer(serializers.Serializer[Any]):
    """What a gate opened now could show. `detectable_effect` in percentage points at power .8."""

    num_tasks = serializers.IntegerField()
    num_clusters = serializers.IntegerField()
    effective_clusters = serializers.FloatField()
    largest_cluster_share = serializers.FloatField()
    look = serializers.IntegerField()
    alpha = serializers.FloatField()
    detectable_effect = serializers.FloatField(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())


class GatePlanQuerySerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    suite = serializers.CharField(help_text="slug (newest ready version) or slug@version")
    gate_policy = serializers.CharField(default="default", help_text="slug (newest) or slug@version")
    samples = serializers.IntegerField(min_value=1, max_value=MAX_SAMPLES, default=1)


class DecideSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(DecisionKind.choices)
    reason = serializers.CharField(default="", allow_blank=True, max_length=4000)
    evidence_digest = serializers.CharField(max_length=64, required=False, help_text="or send it as If-Match")


class ConfirmSerializer(serializers.Serializer[Any]):
    agree = serializers.BooleanField(default=True)
    reason = serializers.CharField(default="", allow_blank=True, max_length=4000, help_text="needed to disagree")
    evidence_digest = serializers.CharField(max_length=64, required=False, help_text="or send it as If-Match")
