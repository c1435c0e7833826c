"""JSON of verifier measurements: rates with intervals, candidates, one candidate opened."""

from typing import Any

from rest_framework import serializers

from apps.tasks.measurements.models import VerifierMeasurement


class MeasurementOptionsSerializer(serializers.Serializer[Any]):
    """All optional; the same choices on the same suite give the same candidates."""

    seed = serializers.IntegerField(required=False, help_text="Draws mutants and inputs; 1 unless given.")
    per_task = serializers.IntegerField(required=False, help_text="Mutants of a task, 1 to 50; 3 unless given.")
    max_tasks = serializers.IntegerField(required=False, help_text="0: all; else so many, drawn by the seed.")
    num_inputs = serializers.IntegerField(required=False, help_text="Of the stronger check, at most, a task.")


class BoundsSerializer(serializers.Serializer[Any]):
    low = serializers.FloatField()
    high = serializers.FloatField()


class ErrorRateSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    n = serializers.IntegerField()
    num_tasks = serializers.IntegerField()
    estimate = serializers.FloatField(allow_null=True, help_text="null: there was nothing to take a share of.")
    wilson = BoundsSerializer(help_text="95 %, candidates taken as independent.")
    clustered = BoundsSerializer(help_text="95 %, candidates of one task may resemble each other.")


class OperatorSerializer(serializers.Serializer[Any]):
    origin = serializers.CharField()
    num_candidates = serializers.IntegerField()
    false_pass = ErrorRateSerializer(source="rate")


class VerifierErrorsSerializer(serializers.Serializer[Any]):
    num_candidates = serializers.IntegerField()
    num_tasks = serializers.IntegerField()
    num_undecided = serializers.IntegerField(help_text="Without a truth or a verdict; in no rate.")
    false_pass = ErrorRateSerializer(help_text="Passed by the verifier, of what the stronger check finds wrong.")
    false_fail = ErrorRateSerializer(help_text="Failed by the verifier, of what the stronger check finds right.")
    wrong_among_passed = ErrorRateSerializer()
    false_pass_by_value = ErrorRateSerializer(help_text="Another type alone, as 1.0 for 1, counts as right.")
    tasks_misjudged = ErrorRateSerializer(help_text="Tasks on which any candidate is judged wrongly.")
    operators = OperatorSerializer(many=True)
    differences = serializers.DictField(child=serializers.IntegerField(), help_text="Of the false passes, by kind.")


class MeasurementProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField()
    total = serializers.IntegerField()
    left_seconds = serializers.FloatField(allow_null=True)


class MeasurementSerializer(serializers.ModelSerializer[VerifierMeasurement]):
    state = serializers.CharField(read_only=True, help_text="running, ready, failed.")
    suite_name = serializers.CharField(source="suite", read_only=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = VerifierMeasurement
        fields = [
            "id", "suite", "suite_name", "method", "label", "verifier_kind", "verifier_hash", "seed", "options",
            "facts", "state", "status_message", "num_tasks", "num_measured", "created_by", "created_at", "finished_at",
        ]  # fmt: skip
        read_only_fields = fields


class MeasurementDetailSerializer(MeasurementSerializer):
    """With method answer_key candidates are chosen to tell two keys apart: only `tasks_misjudged` is a rate then."""

    progress = MeasurementProgressSerializer(allow_null=True)
    rates = VerifierErrorsSerializer(allow_null=True)

    class Meta(MeasurementSerializer.Meta):
        fields = [*MeasurementSerializer.Meta.fields, "progress", "rates"]
        read_only_fields = fields


class MeasuredTaskNameSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    split = serializers.CharField()


class CandidateSerializer(serializers.Serializer[Any]):
    """`input`, `expected`, `got`: of the first input on which candidate and reference differ."""

    id = serializers.UUIDField()
    task = MeasuredTaskNameSerializer()
    origin = serializers.CharField(help_text="Mutation operator, or where an answer comes from.")
    line = serializers.IntegerField(help_text="Of the reference, from 1; 0: none.")
    verdict = serializers.CharField()
    reason_code = serializers.CharField()
    message = serializers.CharField()
    truth = serializers.CharField()
    difference = serializers.CharField(help_text="value, type, exception, timeout, verdict; empty: none.")
    num_inputs = serializers.IntegerField()
    num_different = serializers.IntegerField()
    input = serializers.CharField()
    expected = serializers.CharField()
    got = serializers.CharField()
    content_hidden = serializers.BooleanField(source="hidden", help_text="Texts are empty for want of heldout:read.")


class CandidateListSerializer(serializers.Serializer[Any]):
    results = CandidateSerializer(many=True, source="rows")
    total = serializers.IntegerField()
    next_offset = serializers.IntegerField(allow_null=True)


class CandidateDetailSerializer(CandidateSerializer):
    text = serializers.CharField(help_text="The program, or the answer.")
    diff = serializers.ListField(child=serializers.CharField(), help_text="Against the reference; empty for answers.")
    measurement = serializers.UUIDField()
