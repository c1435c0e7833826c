"""What audit events look like in the API."""

from typing import Any

from rest_framework import serializers

from apps.audit.models import AuditEvent


class AuditEventSerializer(serializers.ModelSerializer[AuditEvent]):
    class Meta:
        model = AuditEvent
        fields = [
            "id", "project_id", "sequence", "at", "tag", "actor_id", "actor_name", "subject_type", "subject_id",
            "before", "after", "reason", "evidence", "origin", "format", "previous_hash", "hash",
        ]  # fmt: skip
        read_only_fields = fields


class ChainSerializer(serializers.Serializer[Any]):
    ok = serializers.BooleanField()
    num_events = serializers.IntegerField()
    head = serializers.CharField(help_text="hash of the newest event")
    broken_at = serializers.IntegerField(allow_null=True, help_text="sequence of the first event that does not fit")
    message = serializers.CharField()
    anchored = serializers.IntegerField(help_text="newest event whose hash is also kept in the object store; 0: none")
