"""Metric points on the wire: batches of a stream, packed by column, numbered so that each is stored once."""

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gpu_workers.contracts.groups import jsonable

MAX_POINTS = 50_000  # of one batch; a stream splits well below it
MAX_NAME = 120  # characters of a metric's name


class PointBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Batch `seq` (0, 1, 2 …) of the stream `source` of one run attempt. Columns are little-endian, base64 in JSON.

    `token`: the trainer's fencing token; 0 of streams that no lease guards.
    """

    run_id: str
    attempt: int = 0
    token: int = 0
    source: str
    seq: int
    sent_at: float  # unix seconds by the worker's clock: tells how far it is off
    names: list[str]
    series: bytes  # uint16: index into `names`
    steps: bytes  # int64
    values: bytes  # float64: NaN and infinities are values
    times: bytes  # float64, unix seconds


_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

Point = tuple[str, int, float, float]  # name, step, value, time


def pack_points(points: Iterable[Point]) -> dict[str, list[str] | bytes]:
    """The columns of a batch, as keyword arguments of `PointBatch`."""
    index: dict[str, int] = {}
    series, steps, values, times = array("H"), array("q"), array("d"), array("d")
    for name, step, value, time in points:
        series.append(index.setdefault(name, len(index)))
        steps.append(step)
        values.append(value)
        times.append(time)
    return {
        "names": list(index),
        "series": series.tobytes(),
        "steps": steps.tobytes(),
        "values": values.tobytes(),
        "times": times.tobytes(),
    }


def wire_values(values: Mapping[str, float]) -> dict[str, float | str]:
    """Named values for JSON, which has neither NaN nor infinities: those go as "nan", "inf" and "-inf"."""
    return {name: value if math.isfinite(value) else str(float(value)) for name, value in values.items()}


def read_values(values: Mapping[str, float | str | None]) -> dict[str, Any]:
    """The inverse of `wire_values`. None is what older workers sent for any of the three, and reads as NaN.

    Other text stays as it is: whoever decodes the values refuses it.
    """
    return {name: math.nan if value is None else _SPECIAL.get(str(value), value) for name, value in values.items()}


def body_of(body: msgspec.Struct) -> dict[str, Any]:
    """Builtins of a report's body; its `metrics`, where it has some, with NaN and infinities."""
    found: dict[str, Any] = jsonable(body)
    metrics = getattr(body, "metrics", None)
    return found | {"metrics": wire_values(metrics)} if isinstance(metrics, dict) else found
