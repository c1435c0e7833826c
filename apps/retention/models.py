"""Sweeps: what one found, and whether it deleted it."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone


class Sweep(models.Model):
    """`findings`: per rule {expired, pinned, bytes, examples}. What it deletes expired by `planned_at`, not later."""

    planned_at = models.DateTimeField(default=timezone.now)
    findings = models.JSONField(default=dict)
    applied_at = models.DateTimeField(null=True)
    applied_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    deleted = models.JSONField(default=dict)  # per rule {rows, bytes}

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(applied_at__isnull=False) | Q(deleted={}), name="sweep_deleted_when_applied"
            )
        ]

    def __str__(self) -> str:
        return f"sweep of {self.planned_at:%Y-%m-%d %H:%M}"
