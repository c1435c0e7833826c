"""What reports and contracts look like in the API."""

from typing import Any

from rest_framework import serializers


class ReportOptionsSerializer(serializers.Serializer[Any]):
    """All optional; an unknown one is refused."""

    threshold = serializers.FloatField(required=False, help_text="Jaccard similarity of near-duplicates, .3 to 1.")
    shingle_characters = serializers.IntegerField(required=False)
    min_attempts = serializers.IntegerField(required=False)
    min_answer_characters = serializers.IntegerField(required=False)
    repeats = serializers.IntegerField(required=False)
    max_probed = serializers.IntegerField(required=False, help_text="Tasks that are probed, drawn by the seed.")
    max_replays = serializers.IntegerField(required=False)
    probe = serializers.BooleanField(required=False, help_text="False: nothing is sent to workers.")
    seed = serializers.IntegerField(required=False)


class ReportProgressSerializer(serializers.Serializer[Any]):
    done = serializers.IntegerField()
    total = serializers.IntegerField()
    left_seconds = serializers.FloatField(allow_null=True)


class SuiteReportSerializer(serializers.Serializer[Any]):
    """`report` holds lengths, difficulty, contracts and findings; each finding names the URL of its rows."""

    id = serializers.UUIDField()
    suite = serializers.UUIDField()
    state = serializers.CharField()
    input_hash = serializers.CharField(help_text="Over content, states of tasks, options and stored attempts.")
    options = serializers.JSONField()
    status_message = serializers.CharField(help_text="Where it is, why it failed, or its verdict in words.")
    verdict = serializers.CharField(help_text="Severity of the worst finding: problem, warning, unmeasured, ok.")
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    progress = ReportProgressSerializer(allow_null=True)
    outdated = serializers.BooleanField(allow_null=True, help_text="Tasks or stored attempts have changed since.")
    stale = serializers.BooleanField(allow_null=True, help_text="Tasks were released, put back or set aside since.")
    report = serializers.JSONField(allow_null=True)


class NamedTaskSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    key = serializers.CharField()
    split = serializers.CharField()
    state = serializers.CharField()


class NamedRowSerializer(serializers.Serializer[Any]):
    task = NamedTaskSerializer()
    other = NamedTaskSerializer(allow_null=True)
    value = serializers.FloatField(allow_null=True)
    note = serializers.CharField()


class FindingListSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(source="finding.name")
    title = serializers.CharField(source="finding.title")
    severity = serializers.CharField(source="finding.severity")
    count = serializers.IntegerField(source="finding.count")
    total = serializers.IntegerField(source="finding.total")
    value_name = serializers.CharField(source="finding.value_name")
    results = NamedRowSerializer(source="rows", many=True)
    num_closed = serializers.IntegerField(help_text="Rows not shown for want of heldout:read.")
    next_offset = serializers.IntegerField(allow_null=True)


class GrantSerializer(serializers.Serializer[Any]):
    topic = serializers.CharField()
    granted = serializers.BooleanField()
    text = serializers.CharField()
    limit = serializers.BooleanField(help_text="Granted up to the bound that the text names.")


class ContractSerializer(serializers.Serializer[Any]):
    contract_hash = serializers.CharField()
    version = serializers.IntegerField()
    max_turns = serializers.IntegerField()
    grants = GrantSerializer(many=True)
    content_hidden = serializers.BooleanField(help_text="Names of files are hidden for want of heldout:read.")
