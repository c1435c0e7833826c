"""Metric points: what workers reported and what ingest measured, in order."""

from django.db import models

from apps.runs.models import Run


class Point(models.Model):
    """One value of one series. `id` is the cursor; NaN and infinities are kept as such."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="points")
    attempt = models.PositiveIntegerField(default=0)
    name = models.CharField(max_length=80)
    step = models.IntegerField()
    value = models.FloatField()
    measured = models.BooleanField(default=False)  # True: computed by the platform from stored episodes
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["run", "name", "step"]), models.Index(fields=["run", "id"])]
