"""Evaluations and their arms and items, gate policies, and the ledger of looks at held-out sets."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid6 import uuid7

from apps.accounts.models import Project
from apps.policies.models import Policy
from apps.runs.models import Checkpoint, FleetInstall, Group, Run
from apps.tasks.models import Suite, Task


class EvaluationPurpose(models.TextChoices):
    DEV = "dev", "Checkpoint selection"
    GATE = "gate", "Promotion gate"
    BASELINE = "baseline", "Baseline"
    REGRESSION = "regression", "Regression replay"


class EvaluationState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    FINISHED = "finished", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class Evaluation(models.Model):
    """Arms run fresh and interleaved on the same tasks with the same seeds. The plan is fixed before it starts."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="evaluations")
    suite = models.ForeignKey(Suite, on_delete=models.PROTECT, related_name="evaluations")
    split = models.CharField(max_length=16)
    purpose = models.CharField(max_length=16, choices=EvaluationPurpose)
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="evaluations")
    state = models.CharField(max_length=16, choices=EvaluationState, default=EvaluationState.QUEUED)
    status_message = models.TextField(blank=True)
    samples = models.PositiveSmallIntegerField(default=1)  # k episodes per task and arm
    sampling = models.JSONField(default=dict)  # max_new_tokens, temperature, top_p, seed
    plan_hash = models.CharField(max_length=64)  # suite hash, tasks, arms, sampling, samples
    install = models.ForeignKey(FleetInstall, null=True, on_delete=models.SET_NULL, related_name="+")  # of the arms
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["finished", "failed", "cancelled"], finished_at__isnull=False)
                | Q(state__in=["queued", "running"], finished_at__isnull=True),
                name="evaluation_finished_when_final",
            )
        ]
        indexes = [models.Index(fields=["project", "state"]), models.Index(fields=["run", "purpose"])]

    def __str__(self) -> str:
        return f"{self.purpose} of {self.suite} {self.split}"


class EvaluationArm(models.Model):
    """One policy, or one checkpoint of a run, under evaluation."""

    evaluation = models.ForeignKey(Evaluation, on_delete=models.CASCADE, related_name="arms")
    position = models.PositiveSmallIntegerField()
    label = models.CharField(max_length=100)
    policy = models.ForeignKey(Policy, null=True, on_delete=models.PROTECT, related_name="+")
    checkpoint = models.ForeignKey(Checkpoint, null=True, on_delete=models.CASCADE, related_name="+")
    num_shots = models.PositiveSmallIntegerField(default=0)
    install = models.ForeignKey(
        FleetInstall, null=True, on_delete=models.SET_NULL, related_name="+"
    )  # of whole weights

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["evaluation", "position"], name="arm_position_unique"),
            models.CheckConstraint(
                condition=Q(policy__isnull=False, checkpoint__isnull=True)
                | Q(policy__isnull=True, checkpoint__isnull=False),
                name="arm_policy_or_checkpoint",
            ),
        ]
        ordering = ["position"]

    def __str__(self) -> str:
        return self.label

    @property
    def whole_weights(self) -> bool:
        """Whether engines must replace their weights for it."""
        return (
            self.policy.whole_weights
            if self.policy
            else self.checkpoint is not None and self.checkpoint.run.whole_weights
        )

    @property
    def engine_name(self) -> str:
        """Name of the arm's adapter, or weights, on engines; empty for a bare base model."""
        subject = self.policy or self.checkpoint
        assert subject is not None
        return subject.engine_name


class EvaluationItem(models.Model):
    """One task under one arm; `group` once it was sent. Items are sent in order of `position` (arms interleaved)."""

    evaluation = models.ForeignKey(Evaluation, on_delete=models.CASCADE, related_name="items")
    arm = models.ForeignKey(EvaluationArm, on_delete=models.CASCADE, related_name="items")
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+")
    position = models.PositiveIntegerField()
    group = models.OneToOneField(Group, null=True, on_delete=models.SET_NULL, related_name="evaluation_item")
    num_tries = models.PositiveSmallIntegerField(default=0)  # groups made for it; each is dispatched several times

    class Meta:
        constraints = [models.UniqueConstraint(fields=["arm", "task"], name="item_unique")]
        ordering = ["position"]

    def __str__(self) -> str:
        return f"{self.arm} on {self.task}"


class GatePolicy(models.Model):
    """Margins and α, fixed before any evaluation. `metrics` maps metric name to {required, margin, kind}."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="gate_policies")
    slug = models.SlugField()
    version = models.PositiveIntegerField(default=1)
    alpha = models.FloatField(default=0.05)
    min_effect = models.FloatField(default=0.0)  # δ_min on held-out success, a share
    metrics = models.JSONField(default=dict)
    max_missing_share = models.FloatField(default=0.02)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "slug", "version"], name="gate_policy_version_unique"),
            models.CheckConstraint(condition=Q(alpha__gt=0, alpha__lt=1), name="gate_policy_alpha_range"),
        ]
        verbose_name_plural = "gate policies"

    def __str__(self) -> str:
        return f"{self.slug}@{self.version}"


class HeldoutLook(models.Model):
    """One look at a held-out set: α spent, by whom, with which verdict."""

    suite = models.ForeignKey(Suite, on_delete=models.PROTECT, related_name="looks")
    number = models.PositiveIntegerField()  # t = 1, 2, …
    alpha = models.FloatField()
    evaluation = models.OneToOneField(Evaluation, on_delete=models.PROTECT, related_name="look")
    verdict = models.CharField(max_length=16, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["suite", "number"], name="look_number_unique")]
        ordering = ["number"]

    def __str__(self) -> str:
        return f"look {self.number} at {self.suite}"
