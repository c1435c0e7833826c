"""Reads of series: blocks and what is not in blocks yet, as every point or as few points that stand for all."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from django.db.models import F
from django.db.models.lookups import IsNull

from apps.metrics.buckets import Thinned, thin, thin_summaries
from apps.metrics.models import MetricBatch, MetricBlock, MetricHead, MetricSeries
from apps.metrics.packing import BLOCK_POINTS, Points, Summary, join, summarise, unpack
from apps.metrics.sealing import split
from apps.runs.models import Run

MOST_POINTS = 1000  # of a series in one answer, unless asked for others
_BLOCKS_AT_ONCE = 2048  # 25 MB
EVERY_POINT_LIMIT = 500_000  # of all asked series together
_SUMMARY = [field.name for field in fields(Summary)]


@dataclass
class _Part:
    """What is stored of one attempt's series within the range: blocks by id, and the points not in blocks."""

    attempt: int
    blocks: dict[int, Summary] = field(default_factory=dict)
    faded: set[int] = field(default_factory=set)  # blocks of which only the summary is left
    tail: Points = field(default_factory=lambda: join([]))

    @property
    def first_step(self) -> int | None:
        steps = [summary.min_step for summary in self.blocks.values()]
        steps += [int(self.tail.steps.min())] if len(self.tail) else []
        return min(steps, default=None)


@dataclass(frozen=True)
class Found:
    """One series. `num_points` within the range, of which `num_odd` are NaN or infinite; `whole`: all are there."""

    name: str
    measured: bool
    steps: list[int]
    values: list[float]
    num_points: int
    num_odd: int
    whole: bool


@dataclass(frozen=True)
class Reading:
    """Series as of revision `cursor`: what is new since then completes them, and nothing of it is in them."""

    series: list[Found]
    cursor: int


class TooManyPoints(ValueError):
    """More points than one answer holds, or points past their retention; the message says what to do."""


def read_series(
    run: Run,
    names: Sequence[str] | None = None,
    *,
    low: int | None = None,
    high: int | None = None,
    most: int = MOST_POINTS,
    every_point: bool = False,
) -> Reading:
    """Series of a run by name, in order of step within [low, high].

    An attempt that begins at step s replaces what earlier attempts said of s and later. Of a name that was measured
    and reported, the measured series counts. With `every_point` nothing is left out. Raises TooManyPoints.
    """
    parts, cursor = _collect(run, names, low, high)
    wholes = [(key, _union(attempts, low, high)) for key, attempts in sorted(_preferred(parts).items())]
    asked = [(key, whole) for key, whole in wholes if whole.first_step is not None]
    found = []
    for some in _by_blocks(asked):
        wanted = [pk for _, whole in some if _is_unpacked(whole, most, every_point) for pk in whole.blocks]
        unpacked = _unpacked(wanted)
        found += [_read(*key, whole, unpacked, most, every_point) for key, whole in some]
    if every_point and sum(item.num_points for item in found) > EVERY_POINT_LIMIT:
        raise TooManyPoints(
            f"These are more than {EVERY_POINT_LIMIT:,} points: name fewer series, or a range with from and to."
        )
    return Reading(found, cursor)


def newest_points(run: Run, name: str, count: int) -> list[tuple[int, float, float]]:
    """(step, value, time) of the last `count` steps of a series, newest first; of a step its last value."""
    parts, _ = _collect(run, [name], None, None)
    rows: dict[int, tuple[int, float, float]] = {}
    for attempts in _preferred(parts).values():
        whole = _union(attempts, None, None)
        newest = sorted(whole.blocks, key=lambda pk: whole.blocks[pk].max_step)[-2 - count // BLOCK_POINTS :]
        points = join([*_unpacked(newest).values(), whole.tail]).by_step()
        for step, value, time in zip(points.steps.tolist(), points.values.tolist(), points.times.tolist(), strict=True):
            rows[step] = (step, value, time)
    return sorted(rows.values(), key=lambda row: -row[0])[:count]


def reported_value(run: Run, name: str, step: int) -> float | None:
    """What a worker last said of one step; None where it said nothing."""
    found = read_series(run, [name], low=step, high=step, every_point=True).series
    return next((item.values[-1] for item in found if not item.measured), None)


def totals(run: Run, names: Sequence[str]) -> dict[str, float]:
    """Sums of the finite values of series, over all attempts."""
    found: dict[str, float] = {}
    for (name, _), attempts in _preferred(_collect(run, names, None, None)[0]).items():
        for part in attempts:
            tail = part.tail.values[np.isfinite(part.tail.values)]
            found[name] = found.get(name, 0.0) + sum(s.total for s in part.blocks.values()) + float(tail.sum())
    return found


_Parts = dict[tuple[str, bool], list[_Part]]


def _collect(run: Run, names: Sequence[str] | None, low: int | None, high: int | None) -> tuple[_Parts, int]:
    """Parts by name and origin from one state of the database, and its revision."""
    rows = MetricSeries.objects.filter(run=run)
    series = {row.pk: row for row in (rows.filter(name__in=names) if names else rows)}
    parts = {pk: _Part(row.attempt) for pk, row in series.items()}
    batches, blocks, cursor = _snapshot(run, list(parts), low, high)
    for series_id, points in split(batches).items():
        if series_id in parts:
            parts[series_id].tail = points
    for pk, series_id, faded, *summary in blocks:
        parts[series_id].blocks[pk] = Summary(*summary)
        if faded:
            parts[series_id].faded.add(pk)
    grouped: _Parts = {}
    for pk, row in series.items():
        grouped.setdefault((row.name, row.measured), []).append(parts[pk])
    return grouped, cursor


def _snapshot(
    run: Run, series: list[int], low: int | None, high: int | None
) -> tuple[list[MetricBatch], list[tuple[Any, ...]], int]:
    """The journal's unsealed batches, the blocks' summaries, and the revision they are of."""
    while True:
        sealed = _sealed_revision(run)
        batches = list(run.metric_batches.filter(revision__gt=sealed).order_by("revision"))
        blocks = MetricBlock.objects.filter(series_id__in=series)
        if low is not None:
            blocks = blocks.filter(max_step__gte=low)
        if high is not None:
            blocks = blocks.filter(min_step__lte=high)
        found = list(blocks.order_by("id").values_list("id", "series_id", IsNull(F("data"), True), *_SUMMARY))
        # A batch that was sealed while we read would be missing, or there twice.
        if _sealed_revision(run) == sealed:
            return batches, found, batches[-1].revision if batches else sealed


def _sealed_revision(run: Run) -> int:
    return MetricHead.objects.filter(pk=run.pk).values_list("sealed_revision", flat=True).first() or 0


def _preferred(parts: _Parts) -> _Parts:
    return {key: found for key, found in parts.items() if key[1] or (key[0], True) not in parts}


def _union(attempts: list[_Part], low: int | None, high: int | None) -> _Part:
    """One part of all attempts: each without what a later one replaced, all within the range."""
    whole = _Part(0)
    end = None if high is None else high + 1
    for part in sorted(attempts, key=lambda part: -part.attempt):
        first = part.first_step
        _add(whole, part, low, end)
        if first is not None:
            end = first if end is None else min(end, first)
    return whole


def _add(whole: _Part, part: _Part, low: int | None, end: int | None) -> None:
    """Put the points of `part` with low ≤ step < end into `whole`; blocks across a bound are unpacked."""
    cut = []
    for pk, summary in part.blocks.items():
        if (low is not None and summary.max_step < low) or (end is not None and summary.min_step >= end):
            continue
        inside = (low is None or summary.min_step >= low) and (end is None or summary.max_step < end)
        if inside or pk in part.faded:
            whole.blocks[pk] = summary
            whole.faded |= {pk} & part.faded
        else:
            cut.append(pk)
    whole.tail = join([whole.tail, *(_within(points, low, end) for points in (*_unpacked(cut).values(), part.tail))])


def _within(points: Points, low: int | None, end: int | None) -> Points:
    kept = np.ones(len(points), np.bool_)
    if low is not None:
        kept &= points.steps >= low
    if end is not None:
        kept &= points.steps < end
    return points if kept.all() else points.where(kept)


def _unpacked(blocks: Sequence[int]) -> dict[int, Points]:
    """Points of blocks by id, in the order they were made."""
    if not blocks:
        return {}
    rows = MetricBlock.objects.filter(pk__in=blocks, data__isnull=False).order_by("id").values_list("id", "data")
    return {pk: unpack(data) for pk, data in rows if data is not None}


_Named = tuple[tuple[str, bool], _Part]


def _by_blocks(asked: list[_Named]) -> Iterator[list[_Named]]:
    """Series in portions that are read by one statement each, bounded in memory."""
    some: list[_Named] = []
    blocks = 0
    for item in asked:
        blocks += len(item[1].blocks)
        if some and blocks > _BLOCKS_AT_ONCE:
            yield some
            some, blocks = [], len(item[1].blocks)
        some.append(item)
    if some:
        yield some


def _is_unpacked(part: _Part, most: int, every_point: bool) -> bool:
    """Whether points are read, not only summaries of blocks."""
    if every_point:
        return not part.faded and _count(part) <= EVERY_POINT_LIMIT
    return len(part.blocks) <= max(1, most // 2) and not part.faded


def _count(part: _Part) -> int:
    return sum(summary.count for summary in part.blocks.values()) + len(part.tail)


def _read(
    name: str, measured: bool, part: _Part, unpacked: Mapping[int, Points], most: int, every_point: bool
) -> Found:
    summaries = list(part.blocks.values())
    tail = part.tail.by_step()
    count = _count(part)
    odd = sum(s.num_nan + s.num_inf + s.num_negative_inf for s in summaries)
    odd += int((~np.isfinite(tail.values)).sum())
    buckets = max(1, most // 2)
    if every_point and part.faded:
        raise TooManyPoints(f"{name}: old points are past their retention and only extremes are left; ask without all.")
    if every_point and not _is_unpacked(part, most, every_point):
        thinned = Thinned([], [])  # refused by the caller, who knows the sum
    elif _is_unpacked(part, most, every_point):
        points = join([*(unpacked[pk] for pk in sorted(part.blocks) if pk in unpacked), tail]).by_step()
        thinned = Thinned(points.steps.tolist(), points.values.tolist()) if every_point else thin(points, buckets)
    else:
        chunks = [tail.where(slice(at, at + BLOCK_POINTS)) for at in range(0, len(tail), BLOCK_POINTS)]
        thinned = thin_summaries([*summaries, *map(summarise, chunks)], buckets)
    return Found(name, measured, thinned.steps, thinned.values, count, odd, len(thinned.steps) == count)
