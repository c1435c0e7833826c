"""A stored measurement of a suite's verifier: the tasks it covers, and every candidate with what was said of it."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from uuid6 import uuid7


class MeasurementState(models.TextChoices):
    RUNNING = "running", "Being measured"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"


class Method(models.TextChoices):
    MUTANTS = "mutants", "Mutants of the references"
    ANSWER_KEY = "answer_key", "An older answer key"


class Truth(models.TextChoices):
    RIGHT = "right", "Right"
    WRONG = "wrong", "Wrong"
    UNDECIDED = "undecided", "Undecided"


class VerifierMeasurement(models.Model):
    """One measurement on one suite version. Rates are computed from its candidates, never stored."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    suite = models.ForeignKey("tasks.Suite", on_delete=models.CASCADE, related_name="measurements")
    method = models.CharField(max_length=16, choices=Method)
    label = models.CharField(max_length=100, blank=True)  # which answer key is measured; empty: the suite's verifier
    verifier_kind = models.CharField(max_length=20)
    verifier_hash = models.CharField(max_length=64, blank=True)  # as the workers computed it; empty: none came back
    seed = models.IntegerField(default=1)
    options = models.JSONField(default=dict)  # MeasurementOptions
    facts = models.JSONField(default=list)  # answer_key: CategoryChange of every category of the benchmark
    state = models.CharField(max_length=16, choices=MeasurementState, default=MeasurementState.RUNNING)
    status_message = models.TextField(blank=True)
    num_tasks = models.PositiveIntegerField(default=0)
    num_measured = models.PositiveIntegerField(default=0)  # tasks that came back, with or without an error
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    active_at = models.DateTimeField(default=timezone.now)  # last time a part was sent or came back
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["suite"], condition=Q(state="running"), name="measurement_one_at_a_time"),
            models.CheckConstraint(
                condition=Q(state="running", finished_at__isnull=True)
                | ~Q(state="running") & Q(finished_at__isnull=False),
                name="measurement_finished_paired",
            ),
        ]
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"measurement of {self.label or self.verifier_kind} on {self.suite}"


class MeasuredTask(models.Model):
    """One task of a measurement. `item`: the MeasureItem that is sent for it."""

    measurement = models.ForeignKey(VerifierMeasurement, on_delete=models.CASCADE, related_name="tasks")
    task = models.ForeignKey("tasks.Task", on_delete=models.CASCADE, related_name="+")
    item = models.JSONField()
    measured_at = models.DateTimeField(null=True)
    num_possible = models.PositiveIntegerField(default=0)  # candidates that there are
    num_inputs = models.PositiveIntegerField(default=0)  # of the stronger check, valid for the reference
    num_refused = models.PositiveIntegerField(default=0)
    error = models.TextField(blank=True)  # why it was not measured

    class Meta:
        constraints = [models.UniqueConstraint(fields=["measurement", "task"], name="measured_task_unique")]
        ordering = ["task__position"]


class MeasuredCandidate(models.Model):
    """One candidate answer: what the verifier said, and what is true. Texts of held-out tasks are content."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    measured = models.ForeignKey(MeasuredTask, on_delete=models.CASCADE, related_name="candidates")
    number = models.PositiveIntegerField()
    origin = models.CharField(max_length=40)  # mutation operator, or where an answer comes from
    line = models.PositiveIntegerField(default=0)  # of the reference, from 1; 0: none
    text = models.TextField()  # the program, or the answer
    verdict = models.CharField(max_length=16)
    reason_code = models.CharField(max_length=40, blank=True)
    message = models.TextField(blank=True)
    truth = models.CharField(max_length=16, choices=Truth)
    difference = models.CharField(max_length=16, blank=True)  # value | type | exception | timeout | verdict
    num_inputs = models.PositiveIntegerField(default=0)
    num_different = models.PositiveIntegerField(default=0)
    input = models.TextField(blank=True)
    expected = models.TextField(blank=True)
    got = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["measured", "number"], name="measured_candidate_unique"),
            models.CheckConstraint(condition=Q(truth__in=Truth.values), name="measured_candidate_truth_known"),
        ]
        indexes = [models.Index(fields=["measured", "verdict", "truth"])]
        ordering = ["measured__task__position", "number"]
