"""A stored report of a suite, and the parts of it that workers measure."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from uuid6 import uuid7


class ReportState(models.TextChoices):
    COMPUTING = "computing", "Computing"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"


class SuiteReport(models.Model):
    """One report on one suite version. `input_hash` is over content, states of tasks, options and stored attempts."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    suite = models.ForeignKey("tasks.Suite", on_delete=models.CASCADE, related_name="reports")
    input_hash = models.CharField(max_length=64)
    options = models.JSONField(default=dict)
    state = models.CharField(max_length=16, choices=ReportState, default=ReportState.COMPUTING)
    status_message = models.TextField(blank=True)  # where it is, why it failed, or its verdict line
    verdict = models.CharField(max_length=16, blank=True)  # severity of the worst finding
    draft = models.CharField(max_length=80, blank=True)  # object key of what was computed before the probes
    body = models.CharField(max_length=80, blank=True)  # object key of the ReportBody
    num_tasks = models.PositiveIntegerField(default=0)
    num_to_probe = models.PositiveIntegerField(default=0)
    num_probed = models.PositiveIntegerField(default=0)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    active_at = models.DateTimeField(default=timezone.now)  # last time a part was sent or came back
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["suite"], condition=Q(state="computing"), name="report_one_at_a_time"),
            models.CheckConstraint(condition=~Q(state="ready") | ~Q(body=""), name="report_ready_has_body"),
            models.CheckConstraint(
                condition=Q(state="computing", finished_at__isnull=True)
                | ~Q(state="computing") & Q(finished_at__isnull=False),
                name="report_finished_paired",
            ),
        ]
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"report on {self.suite}"


class ProbeChunk(models.Model):
    """Tasks that one message has probed. `result`: TaskProbe of each; null until it came back."""

    report = models.ForeignKey(SuiteReport, on_delete=models.CASCADE, related_name="chunks")
    number = models.PositiveIntegerField()
    items = models.JSONField()  # ProbeItem of each task
    result = models.JSONField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["report", "number"], name="probe_chunk_unique")]
        ordering = ["number"]
