"""Writes of metric points: what the platform measures, and the batches of workers, each stored once."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import numpy as np
from django.db import IntegrityError
from django.utils import timezone
from numpy.typing import NDArray

from apps.metrics.journal import UnknownRun, append
from apps.metrics.models import MetricBatch
from apps.metrics.packing import Points
from apps.runs.models import Run
from apps.runs.services.attempts import find_alive
from gpu_workers.contracts.points import MAX_NAME, MAX_POINTS, PointBatch
from gpu_workers.contracts.text import storable

STORED, DUPLICATE = "stored", "duplicate"
_SKEW_SECONDS = 5.0


def store_points(
    run: Run, step: int, values: Mapping[str, float | None], *, attempt: int = 0, measured: bool, at: datetime
) -> int:
    """One point per value, in the caller's transaction; values that are None are not points. Returns how many."""
    named = {name: value for name, value in sorted(values.items()) if value is not None}
    if not named:
        return 0
    count = len(named)
    points = Points(
        np.full(count, step, np.int64), np.array([*named.values()], np.float64), np.full(count, at.timestamp())
    )
    append(run.pk, list(named), np.arange(count, dtype="<u2"), points, attempt=attempt, measured=measured)
    return count


def store_batch(batch: PointBatch) -> str:
    """Store a worker's batch once. Returns "stored", "duplicate" or the reason of refusal; any order, any number."""
    received = timezone.now()
    run_id = _uuid(batch.run_id)
    if run_id is None:
        return f"unknown run {batch.run_id!r}"
    read = _read(batch, received)
    if isinstance(read, str):
        return read
    points, index, skew = read
    if batch.token and find_alive(batch.run_id, batch.attempt, batch.token) is None:
        return f"dead attempt {batch.attempt}"
    names = [str(storable(name))[:MAX_NAME] for name in batch.names]
    source = str(storable(batch.source))[:80]
    try:
        append(run_id, names, index, points, attempt=batch.attempt, source=source, seq=batch.seq, skew_seconds=skew)
    except UnknownRun:
        return f"unknown run {batch.run_id!r}"
    except IntegrityError:
        stored = MetricBatch.objects.filter(run_id=run_id, attempt=batch.attempt, source=source, seq=batch.seq)
        if stored.exists():
            return DUPLICATE
        raise
    return STORED


def _read(batch: PointBatch, received: datetime) -> tuple[Points, NDArray[np.uint16], float] | str:
    """The batch's columns, or why they cannot be stored."""
    count = len(batch.steps) // 8
    if not 0 < count <= MAX_POINTS:
        return f"{count} points: a batch has 1 to {MAX_POINTS}"
    if [len(batch.series), len(batch.steps), len(batch.values), len(batch.times)] != [2 * count, *[8 * count] * 3]:
        return "the columns of the batch differ in length"
    if not batch.source or batch.seq < 0 or not 0 <= batch.attempt < 2**31 or batch.seq >= 2**63:
        return "a batch needs a source, an attempt and a seq of 0 or more"
    index = np.frombuffer(batch.series, "<u2")
    if int(index.max()) >= len(batch.names) or not all(batch.names):
        return "a point names no series of the batch"
    if len(set(batch.names)) != len(batch.names):
        return "the batch names a series twice"
    now = received.timestamp()
    times = np.frombuffer(batch.times, "<f8")
    times = np.where(np.isfinite(times), times, now)
    skew = now - batch.sent_at if np.isfinite(batch.sent_at) else 0.0
    if skew < -_SKEW_SECONDS:  # a clock ahead is certain; one behind cannot be told from a message that waited
        times = times + skew
    return Points(np.frombuffer(batch.steps, "<i8"), np.frombuffer(batch.values, "<f8"), times), index, skew


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
