"""What base models, policies and channels look like in the API."""

from typing import Any

from rest_framework import serializers

from apps.policies.models import BaseModel, Channel, ChannelMove, Gateway, Policy, PolicyKind


class BaseModelSerializer(serializers.ModelSerializer[BaseModel]):
    class Meta:
        model = BaseModel
        fields = ["slug", "title", "fingerprint", "licence", "context_length", "created_at"]
        read_only_fields = fields


class PolicyBriefSerializer(serializers.ModelSerializer[Policy]):
    class Meta:
        model = Policy
        fields = ["id", "slug", "title", "kind"]
        read_only_fields = fields


class PolicySerializer(serializers.ModelSerializer[Policy]):
    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    base_model = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    parent = PolicyBriefSerializer(read_only=True, allow_null=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = Policy
        fields = [
            "id", "project", "slug", "title", "kind", "base_model", "num_shots", "parent", "adapter",
            "adapter_sha256", "adapter_bytes", "whole_weights", "run_id", "run_version", "train_cpu_seconds",
            "created_by", "created_at",
        ]  # fmt: skip
        read_only_fields = fields


class PolicyDetailSerializer(PolicySerializer):
    ancestors = PolicyBriefSerializer(many=True, read_only=True)
    children = PolicyBriefSerializer(many=True, read_only=True)

    class Meta(PolicySerializer.Meta):
        fields = [*PolicySerializer.Meta.fields, "ancestors", "children"]
        read_only_fields = fields


class PolicyCreateSerializer(serializers.Serializer[Any]):
    """A prompt-only policy: base model and number of worked examples. Trained ones come from runs."""

    project = serializers.SlugField()
    slug = serializers.SlugField(max_length=80)
    title = serializers.CharField(max_length=200, required=False, default="")
    base_model = serializers.CharField(help_text="slug of a registered base model")
    num_shots = serializers.IntegerField(min_value=0, max_value=32, required=False, default=0)
    kind = serializers.ChoiceField(choices=[PolicyKind.PROMPT.value], required=False, default=PolicyKind.PROMPT.value)


class GatewaySerializer(serializers.ModelSerializer[Gateway]):
    class Meta:
        model = Gateway
        fields = ["name", "acknowledged_epoch", "last_seen_at"]
        read_only_fields = fields


class MoveSerializer(serializers.ModelSerializer[ChannelMove]):
    from_policy = PolicyBriefSerializer(read_only=True, allow_null=True)
    to_policy = PolicyBriefSerializer(read_only=True)
    by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = ChannelMove
        fields = ["epoch", "kind", "from_policy", "to_policy", "by", "reason", "decision_id", "at"]
        read_only_fields = fields


class ChannelSerializer(serializers.ModelSerializer[Channel]):
    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    policy = PolicyBriefSerializer(read_only=True, allow_null=True)

    class Meta:
        model = Channel
        fields = ["project", "name", "policy", "epoch", "updated_at"]
        read_only_fields = fields


class ChannelDetailSerializer(ChannelSerializer):
    complete = serializers.BooleanField(allow_null=True, help_text="every living gateway serves it; null: none lives")
    gateways = GatewaySerializer(many=True, read_only=True)
    rollback_to = PolicyBriefSerializer(read_only=True, allow_null=True)
    moves = MoveSerializer(many=True, read_only=True)

    class Meta(ChannelSerializer.Meta):
        fields = [*ChannelSerializer.Meta.fields, "complete", "gateways", "rollback_to", "moves"]
        read_only_fields = fields


class ChannelCreateSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    name = serializers.SlugField(max_length=40)
    policy = serializers.CharField(help_text="slug of the first policy served")


class RollbackSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(help_text="what is wrong with the present policy")
