"""What webhooks and deliveries look like in the API."""

from typing import Any

from rest_framework import serializers

from apps.webhooks.models import Delivery, DeliveryAttempt, Webhook


class WebhookSerializer(serializers.ModelSerializer[Webhook]):
    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    events = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = Webhook
        fields = ["id", "project", "url", "events", "enabled", "created_by", "created_at", "updated_at"]
        read_only_fields = fields


class WebhookWithSecretSerializer(WebhookSerializer):
    secret = serializers.CharField(read_only=True, help_text="whsec_…, shown only in this answer")

    class Meta(WebhookSerializer.Meta):
        fields = [*WebhookSerializer.Meta.fields, "secret"]
        read_only_fields = fields


class WebhookCreateSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    url = serializers.CharField(max_length=500, help_text="https://…")
    events = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=1, max_length=50,
        help_text="subject:action of the audit trail, with * for any: run:*, gate:verdict, *",
    )  # fmt: skip


class WebhookChangeSerializer(serializers.Serializer[Any]):
    url = serializers.CharField(max_length=500, required=False)
    events = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=1, max_length=50, required=False
    )
    enabled = serializers.BooleanField(required=False)


class DeliveryAttemptSerializer(serializers.ModelSerializer[DeliveryAttempt]):
    """`status_code` is null where nothing was answered; `error` then says why."""

    class Meta:
        model = DeliveryAttempt
        fields = ["number", "at", "status_code", "error", "response", "duration_seconds"]
        read_only_fields = fields


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    class Meta:
        model = Delivery
        fields = [
            "id", "webhook", "event_type", "state", "num_attempts", "next_attempt_at", "redelivery_of", "created_at",
            "finished_at",
        ]  # fmt: skip
        read_only_fields = fields


class DeliveryDetailSerializer(DeliverySerializer):
    payload = serializers.JSONField(read_only=True)
    attempts = DeliveryAttemptSerializer(many=True, read_only=True)

    class Meta(DeliverySerializer.Meta):
        fields = [*DeliverySerializer.Meta.fields, "payload", "attempts"]
        read_only_fields = fields
