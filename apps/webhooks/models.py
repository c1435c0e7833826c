"""Webhooks, what is delivered to them, and every attempt at it."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from uuid6 import uuid7

from apps.accounts.models import Project


class Webhook(models.Model):
    """An address that is told of a project's events. Its secret is derived (see signing), so none is stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="webhooks")
    url = models.URLField(max_length=500)
    events = ArrayField(models.CharField(max_length=100))  # subject:action, * for any
    enabled = models.BooleanField(default=True)
    secret_version = models.PositiveIntegerField(default=1)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "url"], name="webhook_url_unique")]

    def __str__(self) -> str:
        return self.url


class DeliveryState(models.TextChoices):
    PENDING = "pending", "To be sent"
    DELIVERED = "delivered", "Delivered"
    FAILED = "failed", "Given up"


class Delivery(models.Model):
    """One message to one webhook. Its id travels as `webhook-id`, the same in every attempt."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    event_type = models.CharField(max_length=100)  # subject:action
    payload = models.JSONField()
    state = models.CharField(max_length=16, choices=DeliveryState, default=DeliveryState.PENDING)
    num_attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)  # null: finished
    redelivery_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="redeliveries")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state="pending", next_attempt_at__isnull=False, finished_at__isnull=True)
                | ~Q(state="pending") & Q(next_attempt_at__isnull=True, finished_at__isnull=False),
                name="delivery_finished_paired",
            )
        ]
        indexes = [
            models.Index(fields=["next_attempt_at"], condition=Q(state="pending"), name="delivery_due"),
            models.Index(fields=["webhook", "-id"], name="delivery_of_webhook"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} to {self.webhook}"


class DeliveryAttempt(models.Model):
    """One request: what was answered, or why there was no answer."""

    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    at = models.DateTimeField(auto_now_add=True)
    status_code = models.PositiveSmallIntegerField(null=True)  # null: nothing was answered
    error = models.CharField(max_length=300, blank=True)
    response = models.CharField(max_length=1000, blank=True)  # its beginning
    duration_seconds = models.FloatField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["delivery", "number"], name="delivery_attempt_unique")]
        ordering = ["number"]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.delivery_id}"
