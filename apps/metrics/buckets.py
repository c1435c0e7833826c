"""Few points that stand for many: the lowest and the highest of each bucket, so that no spike is lost. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from apps.metrics.packing import Points, Summary


@dataclass(frozen=True)
class Thinned:
    """Points in order of step. Every one was stored like this: nothing is averaged."""

    steps: list[int]
    values: list[float]


def thin(points: Points, num_buckets: int) -> Thinned:
    """All of at most 2 · `num_buckets` points, else of each bucket of equal width the lowest and the highest.

    A bucket with NaN or infinite values gives the first of those too. `points` are ordered by step.
    """
    if len(points) <= 2 * num_buckets:
        return Thinned(points.steps.tolist(), points.values.tolist())
    first, last = int(points.steps[0]), int(points.steps[-1])
    edges = first + (np.arange(1, num_buckets) * (last - first + 1)) // num_buckets
    bounds = [0, *np.searchsorted(points.steps, edges).tolist(), len(points)]
    chosen: list[int] = []
    finite = np.isfinite(points.values)
    whole = bool(finite.all())
    for start, end in pairwise(bounds):
        if start == end:
            continue
        part, good = points.values[start:end], finite[start:end]
        found = set()
        if whole or good.any():
            found = {
                start + int(np.argmin(part if whole else np.where(good, part, np.inf))),
                start + int(np.argmax(part if whole else np.where(good, part, -np.inf))),
            }
        if not whole and not good.all():
            found.add(start + int(np.argmin(good)))
        chosen += sorted(found)
    picked = points.where(np.array(chosen, np.intp))
    return Thinned(picked.steps.tolist(), picked.values.tolist())


def thin_summaries(summaries: Sequence[Summary], num_buckets: int) -> Thinned:
    """The same from summaries of blocks: a bucket is some neighbouring blocks, so that its extremes are exact.

    Where a block holds what is not finite, its first such step gives NaN, or the infinity where all are of that one.
    """
    ordered = sorted(summaries, key=lambda summary: (summary.min_step, summary.max_step))
    size = max(1, math.ceil(len(ordered) / num_buckets))
    steps: list[int] = []
    values: list[float] = []
    for start in range(0, len(ordered), size):
        found = _extremes(ordered[start : start + size])
        steps += [step for step, _ in found]
        values += [value for _, value in found]
    return Thinned(steps, values)


def _extremes(bucket: Sequence[Summary]) -> list[tuple[int, float]]:
    found: set[tuple[int, float]] = set()
    lows = [(s.low, s.low_step) for s in bucket if s.low is not None and s.low_step is not None]
    highs = [(s.high, s.high_step) for s in bucket if s.high is not None and s.high_step is not None]
    if lows:
        (low, at_low), (high, at_high) = min(lows), max(highs, key=lambda pair: (pair[0], -pair[1]))
        found |= {(at_low, low), (at_high, high)}
    odd = next((s for s in bucket if s.odd_step is not None), None)
    ordered = sorted(found)
    if odd is not None and odd.odd_step is not None:
        ordered = sorted([*ordered, (odd.odd_step, _odd_value(odd))], key=lambda pair: pair[0])
    return ordered


def _odd_value(summary: Summary) -> float:
    if summary.num_nan or (summary.num_inf and summary.num_negative_inf):
        return math.nan
    return math.inf if summary.num_inf else -math.inf
