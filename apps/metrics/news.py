"""What is new in a run's journal since a revision: replay, or the word that it is too much."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from apps.metrics.models import MetricBatch, MetricHead, MetricSeries
from apps.metrics.packing import unpack
from apps.runs.models import Run

MAX_POINTS = 10_000  # more than this since a cursor: the page starts afresh
MOST_BATCHES = 200
_MAX_MET = 20_000


@dataclass(frozen=True)
class News:
    """`points`: [revision, name, step, value, attempt, measured], those of one revision together, never split."""

    points: list[list[Any]]
    cursor: int
    refetch: bool = False


@dataclass(frozen=True)
class Waiting:
    """Batches after a revision, in order. `refetch`: too much, or no longer in the journal; then there are none."""

    batches: list[MetricBatch]
    cursor: int
    refetch: bool = False


def points_since(run: Run, cursor: int) -> News:
    """Points of the batches after revision `cursor`. A cursor from the future (of another database) starts afresh."""
    waiting = batches_since(run, cursor)
    points = [point for batch in points_of(run.pk, waiting.batches) for point in batch]
    return News(points, waiting.cursor, waiting.refetch)


def batches_since(run: Run, cursor: int) -> Waiting:
    waiting = run.metric_batches.filter(revision__gt=cursor).order_by("revision")
    batches = list(waiting[: MOST_BATCHES + 1])
    if not batches:
        newest = _newest(run)
        return Waiting([], newest, refetch=True) if cursor > newest else Waiting([], cursor)
    too_many = len(batches) > MOST_BATCHES or sum(batch.num_points for batch in batches) > MAX_POINTS
    if too_many or any(batch.data is None for batch in batches):
        return Waiting([], _newest(run), refetch=True)
    return Waiting(batches, batches[-1].revision)


def points_of(run_id: UUID, batches: Sequence[MetricBatch]) -> list[list[list[Any]]]:
    """The points of each batch, as `News` has them."""
    return [json.loads(f"[{text}]") for text in texts_of(run_id, batches)]


def texts_of(run_id: UUID, batches: Sequence[MetricBatch]) -> list[str]:
    """The points of each batch as JSON without the outer brackets.

    Written straight from the columns: a list per point would cost more in the garbage collector than all else.
    """
    named = _names_of(run_id, {pk for batch in batches for pk in batch.series})
    found = []
    for batch in batches:
        assert batch.data is not None and batch.index is not None
        columns = unpack(batch.data)
        # A batch of before may name series that were never made: none of its points is of them.
        frames = {place: _frame(batch.revision, *named[pk]) for place, pk in enumerate(batch.series) if pk in named}
        values = [*map(repr, columns.values.tolist())]
        for place in np.flatnonzero(~np.isfinite(columns.values)).tolist():
            values[place] = json.dumps(json_value(float(columns.values[place])))
        places = np.frombuffer(batch.index, "<u2").tolist()
        rows = zip(places, columns.steps.tolist(), values, strict=True)
        found.append(",".join([f"{frames[place][0]}{step},{value}{frames[place][1]}" for place, step, value in rows]))
    return found


def _frame(revision: int, name: str, attempt: int, measured: bool) -> tuple[str, str]:
    """What stands before and after step and value of a series' points."""
    return f"[{revision},{json.dumps(name)},", f",{attempt},{json.dumps(measured)}]"


def _newest(run: Run) -> int:
    return MetricHead.objects.filter(pk=run.pk).values_list("revision", flat=True).first() or 0


_Owner = tuple[str, int, bool]  # name, attempt, measured
_met: dict[tuple[UUID, int], _Owner] = {}  # by run and series, which never change


def _names_of(run_id: UUID, series: set[int]) -> dict[int, _Owner]:
    """Words of series by id; those that this process has met cost nothing."""
    if unmet := {pk for pk in series if (run_id, pk) not in _met}:
        if len(_met) > _MAX_MET:
            _met.clear()
            unmet = series
        rows = MetricSeries.objects.filter(run=run_id, pk__in=unmet).values_list("id", "name", "attempt", "measured")
        _met.update({(run_id, pk): (name, attempt, measured) for pk, name, attempt, measured in rows})
    return {pk: _met[(run_id, pk)] for pk in series if (run_id, pk) in _met}


def json_value(value: float) -> float | str:
    """JSON has neither NaN nor infinity: they are the strings "NaN", "Infinity" and "-Infinity"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
