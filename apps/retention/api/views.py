"""REST of retention: the rules and the newest sweeps. Reading only: deleting is the operator's, on the machine."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.retention import selectors
from apps.retention.models import Sweep
from ratchet.endpoints import Endpoint

_NEWEST = 10


class RuleSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    what = serializers.CharField()
    days = serializers.IntegerField(allow_null=True, help_text="null: kept for ever")
    pinned_by = serializers.CharField(help_text="what keeps it longer")


class SweepSerializer(serializers.ModelSerializer[Sweep]):
    class Meta:
        model = Sweep
        fields = ["id", "planned_at", "findings", "applied_at", "deleted"]
        read_only_fields = fields


class RetentionSerializer(serializers.Serializer[Any]):
    rules = RuleSerializer(many=True)
    sweeps = SweepSerializer(many=True)


class Retention(Endpoint):
    @extend_schema(responses=RetentionSerializer)
    def get(self, request: Request) -> Response:
        """What is kept how long, and the newest sweeps: what they found and, where applied, deleted. For superusers."""
        newest = selectors.sweeps(request.user)[:_NEWEST]
        return Response(RetentionSerializer({"rules": selectors.rules(), "sweeps": newest}).data)
