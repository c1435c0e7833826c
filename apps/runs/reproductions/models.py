"""One row for each time an episode was played again."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from uuid6 import uuid7


class ReproductionState(models.TextChoices):
    REQUESTED = "requested", "Being played again"
    FINISHED = "finished", "Finished"
    FAILED = "failed", "Could not be played"


class ReproductionOutcome(models.TextChoices):
    SAME = "same", "Same verdict"
    DIFFERENT = "different", "Another verdict"
    VERIFIER_CHANGED = "verifier_changed", "Another verdict of a changed verifier"
    LEFT_PATH = "left_path", "Same verdict on another path"
    NOTHING_TO_COMPARE = "nothing_to_compare", "No stored verdict"


class Reproduction(models.Model):
    """An episode's own actions in a fresh sandbox, judged again. `digest` covers calls, outputs, verdict and reward."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    episode = models.ForeignKey("runs.Episode", on_delete=models.CASCADE, related_name="reproductions")
    state = models.CharField(max_length=16, choices=ReproductionState, default=ReproductionState.REQUESTED)
    outcome = models.CharField(max_length=24, choices=ReproductionOutcome, blank=True)
    status_message = models.TextField(blank=True)  # in words: what came out, or why it could not be played
    verdict = models.CharField(max_length=16, blank=True)
    reward = models.FloatField(null=True)
    reason_code = models.CharField(max_length=40, blank=True)
    message = models.TextField(blank=True)  # the verifier's
    evidence = models.JSONField(default=dict)
    calls = models.JSONField(default=list)  # CallComparison of every tool call
    num_calls_different = models.PositiveIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    stored_digest = models.CharField(max_length=64, blank=True)  # of the stored episode, computed the same way
    isolation = models.CharField(max_length=200, blank=True)
    limits_hit = models.JSONField(default=list)
    duration_seconds = models.FloatField(null=True)
    marked_flaky = models.BooleanField(default=False)  # this one put the task into quarantine
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["episode"], condition=Q(state="requested"), name="reproduction_one_at_a_time"
            ),
            models.CheckConstraint(
                condition=Q(state="finished") & ~Q(outcome="") | ~Q(state="finished") & Q(outcome=""),
                name="reproduction_outcome_when_finished",
            ),
            models.CheckConstraint(
                condition=Q(state="requested", finished_at__isnull=True)
                | ~Q(state="requested") & Q(finished_at__isnull=False),
                name="reproduction_finished_paired",
            ),
        ]
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"reproduction of episode {self.episode_id}"
