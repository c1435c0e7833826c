"""Writes of metric points: what the platform measures, and the batches of workers, each stored once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from django.db import IntegrityError, transaction
from django.utils import timezone
from numpy.typing import NDArray

from apps.metrics.journal import UnknownRun, append, note_left_out
from apps.metrics.models import MetricBatch
from apps.metrics.packing import Points
from apps.runs.models import Run
from apps.runs.services.attempts import find_alive
from gpu_workers.contracts.points import MAX_NAME, MAX_POINTS, PointBatch
from gpu_workers.contracts.text import storable

STORED, DUPLICATE = "stored", "duplicate"
MAX_STEP = 2**53 - 1  # and as far below 0: the numbers that JSON keeps everywhere
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
    _store(run.pk, list(named), np.arange(count, dtype="<u2"), points, attempt=attempt, measured=measured)
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
    source = str(storable(batch.source))[:80]
    try:
        _store(
            run_id, batch.names, index, points,
            attempt=batch.attempt, source=source, seq=batch.seq, skew_seconds=skew,
        )  # fmt: skip
    except UnknownRun:
        return f"unknown run {batch.run_id!r}"
    except IntegrityError:
        stored = MetricBatch.objects.filter(run_id=run_id, attempt=batch.attempt, source=source, seq=batch.seq)
        if stored.exists():
            return DUPLICATE
        raise
    return STORED


def _store(run_id: UUID, names: Sequence[str], index: NDArray[np.uint16], points: Points, **batch: Any) -> None:
    """Append the points that can be kept, under names as they can be kept; count the others. Raises as `append`."""
    kept = (points.steps >= -MAX_STEP) & (points.steps <= MAX_STEP)
    too_far = int((~kept).sum())
    if too_far:
        index, points = index[kept], points.where(kept)
    names, index, last = _fit([str(storable(name))[:MAX_NAME] for name in names[: 2**16]], index, points)
    replaced = int((~last).sum())
    if replaced:
        index, points = index[last], points.where(last)
    with transaction.atomic() if too_far or replaced else nullcontext():
        append(run_id, names, index, points, **batch)
        if too_far:
            text = f"Metric steps lie within ±{MAX_STEP}: points of other steps are counted and left out."
            note_left_out(run_id, "metric_steps_bounded", too_far, text)
        if replaced:
            text = (
                f"Metric names that are the same once cut to {MAX_NAME} characters, and cleaned of what no text may "
                "hold, are one series: of its points at one step in one batch the last is kept, the others are counted."
            )
            note_left_out(run_id, "metric_names_collide", replaced, text)


def _fit(
    names: list[str], index: NDArray[np.uint16], points: Points
) -> tuple[list[str], NDArray[np.uint16], NDArray[np.bool_]]:
    """Each name once, the places in them, which points to keep: at one step of a name that came twice the last."""
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    kept = np.ones(len(points), np.bool_)
    if len(places) == len(names):
        return names, index, kept
    times = Counter(names)
    index = np.array([places[name] for name in names], np.uint16)[index]
    shared = np.isin(index, [place for name, place in places.items() if times[name] > 1])
    rows = np.stack([index.astype(np.int64), points.steps])[:, ::-1]
    _, first = np.unique(rows, axis=1, return_index=True)
    kept[shared] = False
    kept[len(points) - 1 - first] = True
    return list(places), index, kept


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
