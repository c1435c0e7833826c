"""Review items sampled with a stored probability, and the labels people give them."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid6 import uuid7

from apps.accounts.models import Project
from apps.runs.models import Episode


class ItemState(models.TextChoices):
    OPEN = "open", "Open"
    LABELLED = "labelled", "Labelled"
    SKIPPED = "skipped", "Skipped"


class ReviewItem(models.Model):
    """One episode to be judged by a person. `inclusion_probability` is that of its stratum's sampling."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="review_items")
    episode = models.OneToOneField(Episode, on_delete=models.CASCADE, related_name="review_item")
    stratum = models.CharField(max_length=120)
    inclusion_probability = models.FloatField()
    why = models.CharField(max_length=100)  # random slice, tamper flag, audit verifier disagrees, suspicion
    position = models.FloatField()  # random order; suspicious ones tend to come earlier
    state = models.CharField(max_length=16, choices=ItemState, default=ItemState.OPEN)
    skip_reason = models.CharField(max_length=200, blank=True)
    skipped_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    reserved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    reserved_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(inclusion_probability__gt=0, inclusion_probability__lte=1), name="item_probability_range"
            ),
            models.CheckConstraint(
                condition=Q(reserved_by__isnull=True, reserved_until__isnull=True)
                | Q(reserved_by__isnull=False, reserved_until__isnull=False),
                name="item_reservation_paired",
            ),
        ]
        indexes = [models.Index(fields=["project", "state", "position"])]

    def __str__(self) -> str:
        return f"review item {self.id}"


class LabelVerdict(models.TextChoices):
    PASS = "pass", "Pass"
    FAIL = "fail", "Fail"
    CANNOT_TELL = "cannot_tell", "Cannot tell"


class Label(models.Model):
    """A person's verdict. Never changed: an undo stamps `undone_at`."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    item = models.ForeignKey(ReviewItem, on_delete=models.CASCADE, related_name="labels")
    reviewer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="labels")
    verdict = models.CharField(max_length=16, choices=LabelVerdict)
    hacking = models.BooleanField(default=False)  # the episode cheats
    comment = models.TextField(blank=True)
    seconds = models.FloatField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    undone_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["item", "reviewer"], condition=Q(undone_at__isnull=True), name="label_one_per_reviewer"
            )
        ]

    def __str__(self) -> str:
        return f"{self.verdict} by {self.reviewer}"
