"""Suites and tasks. A suite's version is frozen once ready; task content lives in the object store by hash."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Value
from uuid6 import uuid7

from apps.accounts.models import Project


class SuiteState(models.TextChoices):
    CHECKING = "checking", "Checking tasks"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"


class Suite(models.Model):
    """One version of a task suite."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="suites")
    slug = models.SlugField()
    version = models.PositiveIntegerField(default=1)
    title = models.CharField(max_length=200)
    description = models.TextField(blank=True)
    distribution = models.TextField()  # what the tasks are a sample of; declared before any trajectory
    failure_modes = models.JSONField(default=list)  # [{code, meaning}]
    verifier = models.JSONField(default=dict)  # {kind, version}
    audit_verifier = models.JSONField(default=dict, blank=True)  # the same of a stronger one; empty: there is none
    source = models.CharField(max_length=100, default="jsonl")
    content_hash = models.CharField(max_length=64)  # over (key, split, task hash) of every task
    state = models.CharField(max_length=16, choices=SuiteState, default=SuiteState.CHECKING)
    status_message = models.TextField(blank=True)
    # [{path, message}]: what the import changed or left out
    import_notes = models.JSONField(default=list, db_default=Value([], models.JSONField()))
    checks_sent_at = models.DateTimeField(null=True)  # last time checks were sent or came back
    checks_started_at = models.DateTimeField(null=True)
    # Tasks at positions below it have been sent to be checked; the next ones go out as these come back.
    checks_sent_to = models.PositiveIntegerField(default=0, db_default=0)
    num_to_check = models.PositiveIntegerField(default=0, db_default=0)  # tasks that were unchecked then
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "slug", "version"], name="suite_version_unique"),
            models.CheckConstraint(condition=models.Q(state__in=SuiteState.values), name="suite_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.slug}@{self.version}"


class SplitName(models.TextChoices):
    TRAIN = "train", "Train"
    DEV = "dev", "Dev"
    HELDOUT = "heldout", "Held-out"
    REGRESSION = "regression", "Regression"


class TaskState(models.TextChoices):
    UNCHECKED = "unchecked", "Not checked yet"
    READY = "ready", "Ready"
    QUARANTINED = "quarantined", "Quarantined"


class Task(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    suite = models.ForeignKey(Suite, on_delete=models.CASCADE, related_name="tasks")
    key = models.CharField(max_length=200)
    split = models.CharField(max_length=16, choices=SplitName)
    position = models.PositiveIntegerField()  # order of import
    bundle = models.CharField(max_length=80)  # object key of the TaskBundle
    task_hash = models.CharField(max_length=64)
    prompt_hash = models.CharField(max_length=64)  # over what the policy is asked, spelling of blanks and case aside
    prompt_preview = models.TextField(blank=True)  # last user message, shortened
    cluster = models.CharField(max_length=200, blank=True)
    tags = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    state = models.CharField(max_length=16, choices=TaskState, default=TaskState.UNCHECKED)
    # Why its check failed; kept when a person releases the task, so that it can be put back.
    quarantine_code = models.CharField(max_length=40, blank=True)
    quarantine_message = models.TextField(blank=True)
    released_at = models.DateTimeField(null=True)
    released_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    release_reason = models.TextField(blank=True, db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["suite", "key"], name="task_key_unique"),
            models.CheckConstraint(condition=models.Q(split__in=SplitName.values), name="task_split_known"),
            models.CheckConstraint(condition=models.Q(state__in=TaskState.values), name="task_state_known"),
            models.CheckConstraint(
                condition=models.Q(released_at=None, release_reason="")
                | (models.Q(released_at__isnull=False, state="ready") & ~models.Q(release_reason="")),
                name="task_release_has_reason",
            ),
        ]
        indexes = [models.Index(fields=["suite", "split", "state", "position"])]
        ordering = ["position"]

    def __str__(self) -> str:
        return f"{self.suite}/{self.key}"


from apps.tasks.measurements.models import MeasuredCandidate as MeasuredCandidate  # noqa: E402  models of this app
from apps.tasks.measurements.models import MeasuredTask as MeasuredTask  # noqa: E402
from apps.tasks.measurements.models import VerifierMeasurement as VerifierMeasurement  # noqa: E402
from apps.tasks.reports.models import ProbeChunk as ProbeChunk  # noqa: E402
from apps.tasks.reports.models import SuiteReport as SuiteReport  # noqa: E402
