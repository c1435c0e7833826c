"""The journal of a run's points: batches numbered in the order of their commits, names bounded."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
from django.db import connection, transaction
from django.db.models import F
from numpy.typing import NDArray

from apps.metrics import sealing
from apps.metrics.models import MetricHead, MetricSeries
from apps.metrics.packing import Points, pack
from apps.runs.events import WARNING, record_event
from apps.runs.models import Run
from ratchet.commits import after_commit

MAX_SERIES = 2000  # of one run, all attempts; more names than that are a mistake, not metrics
_MAX_MET = 1000


class UnknownRun(LookupError):
    """There is no such run."""


_Key = tuple[UUID, int, bool]  # run, attempt, measured
_met: OrderedDict[_Key, dict[str, int]] = OrderedDict()  # ids of committed series that this process has used

_LOCK_HEAD = """
UPDATE metrics_metrichead SET revision = revision + 1, num_points = num_points + %s, num_unsealed = num_unsealed + %s,
    changed_at = now() WHERE run_id = %s RETURNING revision, num_unsealed, num_series
"""
_COLUMNS = "(run_id, revision, attempt, source, seq, num_points, series, index, data, skew_seconds, stored_at)"
_INSERT = f"INSERT INTO metrics_metricbatch {_COLUMNS} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, now())"  # noqa: S608
# The same in one statement, which needs no transaction around it: most batches name only series that are known.
_APPEND = f"""
WITH head AS ({_LOCK_HEAD}), batch AS (
    INSERT INTO metrics_metricbatch {_COLUMNS}
    SELECT %s, head.revision, %s::int, %s, %s::bigint, %s::int, %s::bigint[], %b, %b, %s::float8, now() FROM head
) SELECT num_unsealed, num_series FROM head
"""  # noqa: S608


def append(
    run_id: UUID,
    names: Sequence[str],
    index: NDArray[np.uint16],
    points: Points,
    *,
    attempt: int,
    measured: bool = False,
    source: str = "",
    seq: int | None = None,
    skew_seconds: float = 0.0,
) -> None:
    """Add a batch to the journal of its run. Writers of one run wait for each other from here to their commit.

    Raises UnknownRun, and IntegrityError for a stream's number that is stored.
    """
    met = _met.get((run_id, attempt, measured), {})
    ids = {name: met[name] for name in names if name in met}
    batch = _Batch(attempt, source, seq, skew_seconds)
    row = _append_known(run_id, batch, [ids[name] for name in names], index, points) if len(ids) == len(names) else None
    num_unsealed, num_series = row or _append_new(run_id, batch, measured, names, ids, index, points)
    if sealing.is_due(num_unsealed, num_series):
        sealing.seal(run_id)


@dataclass(frozen=True)
class _Batch:
    attempt: int
    source: str
    seq: int | None
    skew_seconds: float

    def row(self, series: list[int], index: NDArray[np.uint16], points: Points) -> list[Any]:
        packed = index.astype("<u2").tobytes(), pack(points)
        return [self.attempt, self.source, self.seq, len(points), series, *packed, self.skew_seconds]


def _append_known(
    run_id: UUID, batch: _Batch, series: list[int], index: NDArray[np.uint16], points: Points
) -> tuple[int, int] | None:
    """Unsealed points and series of the run; None where it has no head yet."""
    count = len(points)
    # A number that is stored raises: a transaction around us must be able to go on.
    guard = transaction.atomic() if connection.in_atomic_block else nullcontext()
    connection.ensure_connection()
    with guard, connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:  # binary columns
        cursor.execute(_APPEND, [count, count, run_id, run_id, *batch.row(series, index, points)])
        row: tuple[int, int] | None = cursor.fetchone()
    return row


@transaction.atomic
def _append_new(
    run_id: UUID,
    batch: _Batch,
    measured: bool,
    names: Sequence[str],
    ids: dict[str, int],
    index: NDArray[np.uint16],
    points: Points,
) -> tuple[int, int]:
    """Append with names that this process has not met: find or make their series, as far as there is room."""
    revision, num_unsealed, num_series = _lock_head(run_id, len(points))
    unmet = [name for name in names if name not in ids]
    ids |= _make_series(run_id, batch.attempt, measured, unmet, MAX_SERIES - num_series)
    if len(ids) < len(names):
        sent = len(points)
        names, index, points = _refuse(run_id, names, ids, index, points)
        num_unsealed -= sent - len(points)
    with connection.cursor() as cursor:
        series = [ids[name] for name in names]
        cursor.execute(_INSERT, [run_id, revision, *batch.row(series, index, points)])
    return num_unsealed, num_series


def _lock_head(run_id: UUID, count: int) -> tuple[int, int, int]:
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_HEAD, [count, count, run_id])
        row = cursor.fetchone()
        if row is None:  # the run's first batch; constraints are checked at commit only
            if not Run.objects.filter(pk=run_id).exists():
                raise UnknownRun(str(run_id))
            MetricHead.objects.bulk_create([MetricHead(run_id=run_id)], ignore_conflicts=True)
            cursor.execute(_LOCK_HEAD, [count, count, run_id])
            row = cursor.fetchone()
    assert row is not None
    return row


def _make_series(run_id: UUID, attempt: int, measured: bool, names: list[str], room: int) -> dict[str, int]:
    """Ids of series that this process has not met: those of other processes, and new ones as far as there is room."""
    rows = MetricSeries.objects.filter(run_id=run_id, attempt=attempt, measured=measured, name__in=names)
    ids = dict(rows.values_list("name", "id"))
    fresh = [name for name in names if name not in ids][: max(room, 0)]
    if fresh:
        made = MetricSeries.objects.bulk_create(
            [MetricSeries(run_id=run_id, attempt=attempt, measured=measured, name=name) for name in fresh]
        )
        ids |= {series.name: series.pk for series in made}
        MetricHead.objects.filter(pk=run_id).update(num_series=F("num_series") + len(fresh))
    after_commit(_remember, (run_id, attempt, measured), dict(ids))
    return ids


def _refuse(
    run_id: UUID, names: Sequence[str], ids: Mapping[str, int], index: NDArray[np.uint16], points: Points
) -> tuple[list[str], NDArray[np.uint16], Points]:
    """Names, places and points without those of names beyond the bound, which are counted."""
    places = [place for place, name in enumerate(names) if name in ids]
    kept = np.isin(index, places)
    refused = int((~kept).sum())
    examples = [name for name in names if name not in ids][:3]
    text = (
        f"More than {MAX_SERIES} metric names: points of further names are counted and left out, "
        f"e.g. {', '.join(examples)}. A name must not hold a step, an id or a text."
    )
    note_left_out(run_id, "metric_names_bounded", refused, text)
    MetricHead.objects.filter(pk=run_id).update(
        num_points=F("num_points") - refused, num_unsealed=F("num_unsealed") - refused
    )
    moved = np.zeros(len(names), np.uint16)
    moved[places] = np.arange(len(places))
    return [names[place] for place in places], moved[index[kept]], points.where(kept)


def note_left_out(run_id: UUID, code: str, count: int, text: str) -> None:
    """Count points that were left out; of each `code` the run's events say so once. In the batch's transaction."""
    MetricHead.objects.filter(pk=run_id).update(num_refused_points=F("num_refused_points") + count)
    run = Run.objects.get(pk=run_id)
    if count and not run.events.filter(code=code).exists():
        record_event(run, code, text, WARNING)


def _remember(key: _Key, ids: Mapping[str, int]) -> None:
    _met.setdefault(key, {}).update(ids)
    _met.move_to_end(key)
    while len(_met) > _MAX_MET:
        _met.popitem(last=False)
