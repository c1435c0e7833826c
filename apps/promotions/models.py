"""Gates (evidence and verdict) and decisions (people)."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid6 import uuid7

from apps.accounts.models import Project
from apps.evaluations.models import Evaluation, GatePolicy
from apps.policies.models import Channel, Policy
from apps.runs.models import Run


class GateState(models.TextChoices):
    EVALUATING = "evaluating", "Evaluating"
    WAITING = "waiting", "Waiting for a decision"
    DECIDED = "decided", "Decided"
    FAILED = "failed", "Evaluation failed"


class GateVerdict(models.TextChoices):
    PASS = "pass", "Pass"
    FAIL = "fail", "Fail"
    INCONCLUSIVE = "inconclusive", "Inconclusive"


class Gate(models.Model):
    """A candidate against the incumbent of a channel. `report` is what the platform recomputed from stored episodes."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="gates")
    number = models.PositiveIntegerField()
    channel = models.ForeignKey(Channel, on_delete=models.PROTECT, related_name="gates")
    incumbent = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="+")
    candidate = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="gates")
    run = models.ForeignKey(Run, null=True, on_delete=models.SET_NULL, related_name="gates")
    evaluation = models.OneToOneField(Evaluation, on_delete=models.PROTECT, related_name="gate")
    gate_policy = models.ForeignKey(GatePolicy, on_delete=models.PROTECT)
    state = models.CharField(max_length=16, choices=GateState, default=GateState.EVALUATING)
    verdict = models.CharField(max_length=16, choices=GateVerdict, blank=True)
    headline = models.TextField(blank=True)  # the verdict in words
    report = models.JSONField(default=dict)
    evidence_digest = models.CharField(max_length=64, blank=True)  # over the episodes the report was computed from
    submitted_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    computed_at = models.DateTimeField(null=True)
    regression = models.OneToOneField(
        Evaluation, null=True, on_delete=models.PROTECT, related_name="replayed_gate"
    )  # replay after the promotion
    regression_result = models.JSONField(default=dict)  # {status, words, num_better, num_worse, p, tasks}

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "number"], name="gate_number_unique"),
            models.CheckConstraint(
                condition=~Q(state__in=["waiting", "decided"]) | ~Q(verdict="") & ~Q(evidence_digest=""),
                name="gate_verdict_has_evidence",
            ),
        ]

    def __str__(self) -> str:
        return f"gate {self.number}: {self.candidate} against {self.incumbent}"


class DecisionKind(models.TextChoices):
    APPROVE = "approve", "Approve"
    REJECT = "reject", "Reject"
    OVERRIDE = "override", "Override the gate"


class Decision(models.Model):
    """A person's decision on a gate. An override needs a reason and a second approver before it takes effect."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    gate = models.OneToOneField(Gate, on_delete=models.PROTECT, related_name="decision")
    kind = models.CharField(max_length=16, choices=DecisionKind)
    by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="decisions")
    reason = models.TextField(blank=True)
    evidence_digest = models.CharField(max_length=64)  # what was on screen
    second_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    effective_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~Q(kind="override") | ~Q(reason=""), name="decision_override_has_reason"),
            models.CheckConstraint(
                condition=~Q(kind="override") | Q(effective_at__isnull=True) | Q(second_by__isnull=False),
                name="decision_override_has_second",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} on gate {self.gate.number}"
