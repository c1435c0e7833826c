"""Metric series: a journal of batches as they came, packed blocks with their extremes, and mergeable histograms.

A point is stored once: in a batch, which the unique constraint on (run, attempt, source, seq) guards. Full series are
read from blocks, which batches are sealed into; a sealed batch stays as a receipt, and for a while as replay.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.metrics.packing import BLOCK_POINTS
from apps.runs.models import Run


class MetricHead(models.Model):
    """One row a run, locked by whoever adds points: `revision` counts stored batches in the order of their commits."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="metric_head")
    revision = models.PositiveBigIntegerField(default=0)
    num_points = models.PositiveBigIntegerField(default=0)
    sealed_revision = models.PositiveBigIntegerField(default=0)  # points of batches up to it are in blocks
    num_unsealed = models.PositiveBigIntegerField(default=0)  # points that are not
    num_series = models.PositiveIntegerField(default=0)
    num_refused_points = models.PositiveBigIntegerField(default=0)  # left out: events of the run say why
    changed_at = models.DateTimeField(default=timezone.now)


class MetricSeries(models.Model):
    """One name of one attempt. `measured`: computed by the platform from stored episodes."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metric_series")
    name = models.CharField(max_length=120)
    attempt = models.PositiveIntegerField(default=0)
    measured = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "name", "attempt", "measured"], name="metric_series_unique")
        ]

    def __str__(self) -> str:
        return f"{self.name} (attempt {self.attempt})"


class MetricBatch(models.Model):
    """Points as they came. `seq` is the worker's number, null of what the platform computed itself.

    `data`: packed steps, values and times of all points, `index` (uint16) their places in `series`.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metric_batches")
    revision = models.PositiveBigIntegerField()
    attempt = models.PositiveIntegerField(default=0)
    source = models.CharField(max_length=80, blank=True)  # the stream; empty: the platform
    seq = models.PositiveBigIntegerField(null=True)
    num_points = models.PositiveIntegerField()
    series = ArrayField(models.BigIntegerField())
    index = models.BinaryField(null=True)
    data = models.BinaryField(null=True)  # null: sealed, and too old to be replayed
    skew_seconds = models.FloatField(default=0)  # our clock minus the worker's; its times were moved by it
    stored_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "revision"], name="metric_revision_unique"),
            models.UniqueConstraint(fields=["run", "attempt", "source", "seq"], name="metric_batch_once"),
        ]

    def __str__(self) -> str:
        return f"{self.num_points} points of {self.source or 'the platform'}, revision {self.revision}"


class MetricBlock(models.Model):
    """Up to 512 points of one series, packed, with a summary that charts of long series are drawn from."""

    series = models.ForeignKey(MetricSeries, on_delete=models.CASCADE, related_name="blocks")
    count = models.PositiveIntegerField()
    min_step = models.BigIntegerField()
    max_step = models.BigIntegerField()
    low = models.FloatField(null=True)
    low_step = models.BigIntegerField(null=True)
    high = models.FloatField(null=True)
    high_step = models.BigIntegerField(null=True)
    total = models.FloatField(default=0)
    num_nan = models.PositiveIntegerField(default=0)
    num_inf = models.PositiveIntegerField(default=0)
    num_negative_inf = models.PositiveIntegerField(default=0)
    odd_step = models.BigIntegerField(null=True)
    data = models.BinaryField(null=True)  # null: past its retention, only the summary is left

    class Meta:
        indexes = [
            models.Index(fields=["series", "min_step"], name="metric_block_by_step"),
            models.Index(fields=["series"], name="metric_block_open", condition=Q(count__lt=BLOCK_POINTS)),
        ]

    def __str__(self) -> str:
        return f"{self.count} points, steps {self.min_step} to {self.max_step}"


class MetricHistogram(models.Model):
    """Distribution of one quantity over the episodes of one policy version (or step); histograms of one name merge."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metric_histograms")
    name = models.CharField(max_length=120)
    position = models.IntegerField()  # the version that generated, or the step that trained
    count = models.PositiveBigIntegerField(default=0)
    sketch = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name", "position"], name="metric_histogram_unique")]

    def __str__(self) -> str:
        return f"{self.name} at {self.position}, n = {self.count}"
