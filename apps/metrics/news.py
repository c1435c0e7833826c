"""What is new in a run's journal since a revision: replay, or the word that it is too much."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db.models import F
from django.db.models.lookups import IsNull

from apps.metrics.models import MetricHead, MetricSeries
from apps.metrics.packing import unpack
from apps.runs.models import Run

MAX_POINTS = 10_000  # more than this since a cursor: the page starts afresh


@dataclass(frozen=True)
class News:
    """`points`: [revision, name, step, value, attempt, measured], those of one revision together, never split."""

    points: list[list[Any]]
    cursor: int
    refetch: bool = False


def points_since(run: Run, cursor: int) -> News:
    """Points of the batches after revision `cursor`. A cursor from the future (of another database) starts afresh."""
    head = MetricHead.objects.filter(pk=run.pk).first()
    newest = head.revision if head else 0
    if cursor == newest:
        return News([], cursor)
    waiting = run.metric_batches.filter(revision__gt=cursor, revision__lte=newest).order_by("revision")
    sizes = list(waiting.values_list("num_points", IsNull(F("data"), True))[: MAX_POINTS + 1])
    if cursor > newest or sum(size for size, _ in sizes) > MAX_POINTS or any(gone for _, gone in sizes):
        return News([], newest, refetch=True)
    batches = list(waiting)
    series = MetricSeries.objects.in_bulk({pk for batch in batches for pk in batch.series})
    points: list[list[Any]] = []
    for batch in batches:
        if batch.data is None or batch.index is None:  # sealed a second time since we looked
            return News([], newest, refetch=True)
        named = [series.get(pk) for pk in batch.series]
        columns = unpack(batch.data)
        places = np.frombuffer(batch.index, "<u2").tolist()
        for place, step, value in zip(places, columns.steps.tolist(), columns.values.tolist(), strict=True):
            row = named[place]
            assert row is not None
            points.append([batch.revision, row.name, step, json_value(value), row.attempt, row.measured])
    return News(points, newest)


def json_value(value: float) -> float | str:
    """JSON has neither NaN nor infinity: they are the strings "NaN", "Infinity" and "-Infinity"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
