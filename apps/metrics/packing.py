"""Columns of points as bytes, and what a block of points says of itself without being unpacked. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_POINTS = 512


@dataclass(frozen=True)
class Points:
    """Points of one series in the order they were stored. Arrays of one length; times are unix seconds."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice) -> "Points":
        return Points(self.steps[chosen], self.values[chosen], self.times[chosen])

    def by_step(self) -> "Points":
        """Ordered by step; points of one step keep their order."""
        return self.where(np.argsort(self.steps, kind="stable"))


def join(parts: Sequence[Points]) -> Points:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Points(np.empty(0, np.int64), np.empty(0), np.empty(0))
    return Points(
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.times for part in parts]),
    )


def pack(points: Points) -> bytes:
    """Little-endian steps (int64), values and times (float64), one after the other."""
    return points.steps.astype("<i8").tobytes() + points.values.astype("<f8").tobytes() + points.times.tobytes()


def unpack(data: bytes | memoryview) -> Points:
    count, rest = divmod(len(data), 24)
    if rest:
        raise ValueError(f"{len(data)} bytes are no points: three columns of 8 bytes each")
    return Points(
        np.frombuffer(data, "<i8", count, 0),
        np.frombuffer(data, "<f8", count, 8 * count),
        np.frombuffer(data, "<f8", count, 16 * count),
    )


@dataclass(frozen=True)
class Summary:
    """Of one block: extremes with their steps, and what is not finite. `low`… are None where nothing is finite."""

    count: int
    min_step: int
    max_step: int
    low: float | None
    low_step: int | None
    high: float | None
    high_step: int | None
    total: float  # of the finite values
    num_nan: int
    num_inf: int
    num_negative_inf: int
    odd_step: int | None  # first step with a value that is not finite


def summarise(points: Points) -> Summary:
    """Of at least one point."""
    finite = np.isfinite(points.values)
    good = points if finite.all() else points.where(finite)
    odd = points.steps[~finite]
    low = int(np.argmin(good.values)) if len(good) else None
    high = int(np.argmax(good.values)) if len(good) else None
    return Summary(
        count=len(points),
        min_step=int(points.steps.min()),
        max_step=int(points.steps.max()),
        low=None if low is None else float(good.values[low]),
        low_step=None if low is None else int(good.steps[low]),
        high=None if high is None else float(good.values[high]),
        high_step=None if high is None else int(good.steps[high]),
        total=_total(good.values),
        num_nan=int(np.isnan(points.values).sum()),
        num_inf=int(np.isposinf(points.values).sum()),
        num_negative_inf=int(np.isneginf(points.values).sum()),
        odd_step=int(odd.min()) if len(odd) else None,
    )


def _total(values: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore"):  # a sum beyond the largest float is infinite, and says so
        return float(values.sum())
