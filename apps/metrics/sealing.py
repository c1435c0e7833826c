"""Moves points of the journal into packed blocks, under the lock of their run's head."""

from dataclasses import astuple, fields
from uuid import UUID

import numpy as np
from django.db import connection, transaction
from psycopg import sql

from apps.metrics.models import MetricBatch, MetricBlock, MetricHead
from apps.metrics.packing import BLOCK_POINTS, Points, Summary, join, pack, summarise, unpack

SEAL_POINTS = 16_384
_POINTS_A_SERIES = 128  # of a run with many series: sealing rewrites one open block of each
_SUMMARY = [field.name for field in fields(Summary)]
_TYPES = ["int4", "int8", "int8", "float8", "int8", "float8", "int8", "float8", "int4", "int4", "int4", "int8"]


def is_due(num_unsealed: int, num_series: int) -> bool:
    return num_unsealed >= max(SEAL_POINTS, _POINTS_A_SERIES * num_series)


@transaction.atomic
def seal(run_id: UUID) -> int:
    """Seal all that is unsealed. Returns the number of points.

    What an earlier call sealed is no longer replayed: its rows stay as receipts, which refuse a batch sent twice.
    """
    head = MetricHead.objects.select_for_update().get(pk=run_id)
    batches = MetricBatch.objects.filter(run_id=run_id)
    unsealed = list(batches.filter(revision__gt=head.sealed_revision).order_by("revision"))
    if not unsealed:
        return 0
    batches.filter(revision__lte=head.sealed_revision, data__isnull=False).update(data=None, index=None)
    by_series = split(unsealed)
    opened = MetricBlock.objects.filter(series_id__in=by_series, count__lt=BLOCK_POINTS, data__isnull=False)
    found = list(opened.values_list("id", "series_id", "data"))
    MetricBlock.objects.filter(pk__in=[pk for pk, *_ in found]).delete()  # filled up, and written again below
    for _, series_id, data in found:
        assert data is not None
        by_series[series_id] = join([unpack(data), by_series[series_id]])
    _copy(by_series)
    count = head.num_unsealed
    head.sealed_revision, head.num_unsealed = unsealed[-1].revision, 0
    head.save(update_fields=["sealed_revision", "num_unsealed"])
    return count


def split(batches: list[MetricBatch]) -> dict[int, Points]:
    """Points of each series in the order of the batches."""
    held = [batch for batch in batches if batch.num_points]
    if not held:
        return {}
    all_points = join([unpack(batch.data) for batch in held if batch.data is not None])
    owner = np.concatenate(
        [
            np.asarray(batch.series, np.int64)[np.frombuffer(batch.index, "<u2")]
            for batch in held
            if batch.index is not None
        ]
    )
    order = np.argsort(owner, kind="stable")
    ids, starts = np.unique(owner[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]
    return {
        int(series_id): all_points.where(order[bounds[place] : bounds[place + 1]])
        for place, series_id in enumerate(ids)
    }


def _copy(by_series: dict[int, Points]) -> None:
    columns = sql.SQL(", ").join(map(sql.Identifier, ["series_id", *_SUMMARY, "data"]))
    statement = sql.SQL("COPY metrics_metricblock ({}) FROM STDIN (FORMAT BINARY)").format(columns)
    with connection.cursor() as cursor, cursor.cursor.copy(statement) as copy:
        copy.set_types(["int8", *_TYPES, "bytea"])
        for series_id, points in by_series.items():
            for start in range(0, len(points), BLOCK_POINTS):
                block = points.where(slice(start, start + BLOCK_POINTS))
                copy.write_row((series_id, *astuple(summarise(block)), pack(block)))
