"""JSON of reviews. An item never carries a verdict, a policy, another label or why it was drawn."""

from typing import Any

from rest_framework import serializers

from apps.reviews.models import Label, LabelVerdict


class BlindTurnSerializer(serializers.Serializer[Any]):
    role = serializers.CharField()
    text = serializers.CharField()
    tool = serializers.CharField()
    arguments = serializers.DictField()
    result = serializers.CharField()
    ok = serializers.BooleanField()
    error = serializers.CharField()
    seconds = serializers.FloatField()


class BlindItemSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    project = serializers.CharField()
    suite = serializers.CharField()
    reserved_until = serializers.DateTimeField(allow_null=True)
    prompt = serializers.ListField(child=serializers.DictField())
    tools = serializers.ListField(child=serializers.DictField())
    turns = BlindTurnSerializer(many=True)
    answer = serializers.CharField()
    sandbox_log = serializers.CharField()
    problem = serializers.CharField()


class NextItemSerializer(serializers.Serializer[Any]):
    """`item` is null when nothing is left for you."""

    item = BlindItemSerializer(allow_null=True)
    num_waiting = serializers.IntegerField()


class LabelCreateSerializer(serializers.Serializer[Any]):
    verdict = serializers.ChoiceField(LabelVerdict.choices)
    hacking = serializers.BooleanField(default=False, help_text="the episode cheats")
    comment = serializers.CharField(default="", allow_blank=True, max_length=4000)
    seconds = serializers.FloatField(required=False, min_value=0, allow_null=True)


class LabelSerializer(serializers.ModelSerializer[Label]):
    reviewer = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = Label
        fields = ["id", "item", "reviewer", "verdict", "hacking", "comment", "seconds", "created_at", "undone_at"]


class SkipSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=200)


class RateSerializer(serializers.Serializer[Any]):
    estimate = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class VerifierRatesSerializer(serializers.Serializer[Any]):
    """Weighted by inclusion probability; null: not measured, there are too few labels."""

    num_labels = serializers.IntegerField()
    false_positive = RateSerializer(allow_null=True)
    false_negative = RateSerializer(allow_null=True)
    disagreement = RateSerializer(allow_null=True)


class KindRatesSerializer(serializers.Serializer[Any]):
    policy_kind = serializers.CharField()
    rates = VerifierRatesSerializer()


class ReviewSummarySerializer(serializers.Serializer[Any]):
    num_open = serializers.IntegerField()
    num_labelled = serializers.IntegerField()
    num_skipped = serializers.IntegerField()
    num_cannot_tell = serializers.IntegerField()
    num_waiting_for_me = serializers.IntegerField()
    labels_by_me = serializers.IntegerField()
    rates = VerifierRatesSerializer()
    by_kind = KindRatesSerializer(many=True)
