"""Distributions that merge: exact while they have few different values, then with percentiles right within 1 %. Pure.

The second form is DDSketch with logarithmic buckets: Masson, Rim and Lee, "DDSketch: A fast and fully-mergeable
quantile sketch with relative-error guarantees", VLDB 2019.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RELATIVE_ERROR = 0.01
MOST_EXACT = 256  # different values that are kept as they are
SMALLEST = 1e-9  # magnitudes below count as zero once values are in buckets
_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)


@dataclass
class Sketch:
    """Counts by value (`exact`), or by bucket: `buckets[k]` holds γ^(k−1) < x ≤ γ^k, `negative[k]` the same of −x.

    What is not finite is counted apart and belongs to no percentile.
    """

    exact: dict[float, int] | None = field(default_factory=dict)
    buckets: dict[int, int] = field(default_factory=dict)
    negative: dict[int, int] = field(default_factory=dict)
    zero: int = 0
    count: int = 0  # finite values
    not_finite: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def add(self, value: float, times: int = 1) -> None:
        if not math.isfinite(value):
            self.not_finite += times
            return
        self.count += times
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.total = _bounded(self.total + value * times)
        if self.exact is None:
            self._count(value, times)
            return
        self.exact[value] = self.exact.get(value, 0) + times
        if len(self.exact) > MOST_EXACT:
            self._blur()

    def merge(self, other: "Sketch") -> None:
        """The same as adding the other's values one by one."""
        if other.exact is not None:
            for value, times in other.exact.items():
                self.add(value, times)
            self.not_finite += other.not_finite
            return
        self._blur()
        for mine, theirs in ((self.buckets, other.buckets), (self.negative, other.negative)):
            for bucket, times in theirs.items():
                mine[bucket] = mine.get(bucket, 0) + times
        self.zero += other.zero
        self.count += other.count
        self.not_finite += other.not_finite
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.total = _bounded(self.total + other.total)

    def quantile(self, share: float) -> float | None:
        """Interpolated between neighbouring ranks, as percentile_cont; None of nothing."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Shares in any order."""
        if not self.count:
            return [None] * len(shares)
        ladder = list(self._ascending())
        return [self._at(ladder, share * (self.count - 1)) for share in shares]

    def bins(self, edges: Sequence[float]) -> list[int]:
        """Counts between neighbouring edges; values outside are in the outer bins, an upper edge in the bin above."""
        counts = [0] * (len(edges) - 1)
        for value, times in self._ascending():
            place = sum(edge <= value for edge in edges) - 1
            counts[min(max(place, 0), len(counts) - 1)] += times
        return counts

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"count": self.count, "not_finite": self.not_finite, "total": self.total}
        if self.count:
            found |= {"low": self.low, "high": self.high}
        if self.exact is not None:
            return found | {"exact": sorted(self.exact.items())}
        return found | {
            "buckets": sorted(self.buckets.items()), "negative": sorted(self.negative.items()), "zero": self.zero,
        }  # fmt: skip

    def _at(self, ladder: list[tuple[float, int]], rank: float) -> float:
        below, above = self._ranked(ladder, math.floor(rank)), self._ranked(ladder, math.ceil(rank))
        return below + (above - below) * (rank - math.floor(rank))

    def _ranked(self, ladder: list[tuple[float, int]], rank: int) -> float:
        for value, times in ladder:
            if rank < times:
                return value
            rank -= times
        return self.high

    def _ascending(self) -> Iterator[tuple[float, int]]:
        if self.exact is not None:
            yield from sorted(self.exact.items())
            return
        for bucket in sorted(self.negative, reverse=True):
            yield self._inside(-_middle(bucket)), self.negative[bucket]
        if self.zero:
            yield 0.0, self.zero
        for bucket in sorted(self.buckets):
            yield self._inside(_middle(bucket)), self.buckets[bucket]

    def _inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def _blur(self) -> None:
        for value, times in (self.exact or {}).items():
            self._count(value, times)
        self.exact = None

    def _count(self, value: float, times: int) -> None:
        if abs(value) < SMALLEST:
            self.zero += times
            return
        side = self.buckets if value > 0 else self.negative
        bucket = math.ceil(math.log(abs(value)) / _LOG_GAMMA)
        side[bucket] = side.get(bucket, 0) + times


def of_values(values: Iterable[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


def from_json(data: Mapping[str, Any]) -> Sketch:
    exact = data.get("exact", None if "buckets" in data else ())
    return Sketch(
        exact=None if exact is None else {float(value): times for value, times in exact},
        buckets=dict(data.get("buckets", ())),
        negative=dict(data.get("negative", ())),
        zero=data.get("zero", 0),
        count=data.get("count", 0),
        not_finite=data.get("not_finite", 0),
        low=data.get("low", math.inf),
        high=data.get("high", -math.inf),
        total=data.get("total", 0.0),
    )


def merged(sketches: Iterable[Sketch]) -> Sketch:
    whole = Sketch()
    for sketch in sketches:
        whole.merge(sketch)
    return whole


def _middle(bucket: int) -> float:
    """The value within the relative error of every value of the bucket."""
    return 2 * _GAMMA**bucket / (_GAMMA + 1)


def _bounded(total: float) -> float:
    """JSON has no infinity."""
    return min(max(total, -sys.float_info.max), sys.float_info.max)
