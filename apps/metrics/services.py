"""Writes of metric points; always within the transaction of what they measure."""

from collections.abc import Mapping
from datetime import datetime

from apps.metrics.models import Point
from apps.runs.models import Run

_MAX_NAME = Point._meta.get_field("name").max_length


def store_points(
    run: Run, step: int, values: Mapping[str, float | None], *, attempt: int = 0, measured: bool, at: datetime
) -> list[Point]:
    """One point per value; values that are None are not points."""
    points = [
        Point(run=run, attempt=attempt, name=name[:_MAX_NAME], step=step, value=value, measured=measured, at=at)
        for name, value in sorted(values.items())
        if value is not None
    ]
    return Point.objects.bulk_create(points)
