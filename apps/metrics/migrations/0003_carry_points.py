# Every point of the row-per-point table goes into the journal of its run, and distributions are made of the episodes.
# Backwards, points of journal and blocks become rows again (of points past their retention only extremes are left,
# which are not brought back).

from datetime import UTC, datetime

import numpy as np
from django.db import migrations

from apps.metrics.packing import Points, pack, unpack
from apps.metrics.sketch import of_values

_BATCH = 10_000
_MAX_NAME = 80  # of the old table
# As apps.metrics.histograms names them; columns of an episode.
_OF_EPISODES = {
    "rollout/reward": "reward",
    "rollout/latency_seconds": "total_seconds",
    "rollout/tool_wait_seconds": "tool_seconds",
    "rollout/queue_wait_seconds": "queue_seconds",
    "rollout/length_tokens": "num_sampled_tokens",
}


def pack_points(apps, schema_editor):
    Point = apps.get_model("metrics", "Point")
    for run_id in Point.objects.order_by("run_id").values_list("run_id", flat=True).distinct():
        _pack_run(apps, run_id, Point.objects.filter(run_id=run_id).order_by("attempt", "measured", "id"))
    Group = apps.get_model("runs", "Group")
    groups = Group.objects.filter(run__isnull=False).exclude(uri="")
    for run_id in groups.order_by("run_id").values_list("run_id", flat=True).distinct():
        _measure_run(apps, run_id)


def _pack_run(apps, run_id, points):
    Head, Series = apps.get_model("metrics", "MetricHead"), apps.get_model("metrics", "MetricSeries")
    Batch = apps.get_model("metrics", "MetricBatch")
    head = Head(run_id=run_id)
    head.save(force_insert=True)
    ids, rows = {}, []

    def flush():
        if not rows:
            return
        attempt, measured = rows[0].attempt, rows[0].measured
        names = list(dict.fromkeys(row.name for row in rows))
        for name in names:
            if (name, attempt, measured) not in ids:
                series = Series.objects.create(run_id=run_id, name=name, attempt=attempt, measured=measured)
                ids[(name, attempt, measured)] = series.pk
        place = {name: index for index, name in enumerate(names)}
        packed = Points(
            np.array([row.step for row in rows], np.int64),
            np.array([row.value for row in rows], np.float64),
            np.array([row.at.timestamp() for row in rows], np.float64),
        )
        head.revision += 1
        head.num_points += len(rows)
        head.num_unsealed += len(rows)
        Batch.objects.create(
            run_id=run_id, revision=head.revision, attempt=attempt, num_points=len(rows),
            series=[ids[(name, attempt, measured)] for name in names],
            index=np.array([place[row.name] for row in rows], "<u2").tobytes(), data=pack(packed),
        )
        rows.clear()

    for point in points.iterator(chunk_size=5000):
        if rows and (len(rows) == _BATCH or (rows[0].attempt, rows[0].measured) != (point.attempt, point.measured)):
            flush()
        rows.append(point)
    flush()
    head.num_series = len(ids)
    head.save()


def _measure_run(apps, run_id):
    Episode, Batch = apps.get_model("runs", "Episode"), apps.get_model("runs", "Batch")
    Histogram = apps.get_model("metrics", "MetricHistogram")
    found = {}
    episodes = Episode.objects.filter(group__run_id=run_id).exclude(group__uri="")
    columns = [*_OF_EPISODES.values()]
    for version, *values in episodes.values_list("group__policy_version", *columns).iterator(chunk_size=5000):
        for name, value in zip(_OF_EPISODES, values, strict=True):
            if value is not None:
                found.setdefault((name, version), []).append(float(value))
    for batch in Batch.objects.filter(run_id=run_id, state="trained"):
        for age, scored in batch.groups.filter(outcome="trained").values_list("age", "num_scored"):
            found.setdefault(("train/staleness", batch.index + 1), []).extend([float(age or 0)] * scored)
    rows = []
    for (name, position), values in found.items():
        sketch = of_values(values)
        row = Histogram(run_id=run_id, name=name, position=position, count=sketch.count, sketch=sketch.to_json())
        rows.append(row)
    Histogram.objects.bulk_create(rows, batch_size=500)


def unpack_points(apps, schema_editor):
    Head, Series = apps.get_model("metrics", "MetricHead"), apps.get_model("metrics", "MetricSeries")
    Batch, Block = apps.get_model("metrics", "MetricBatch"), apps.get_model("metrics", "MetricBlock")
    for head in Head.objects.order_by("run_id"):
        series = {row.pk: row for row in Series.objects.filter(run_id=head.run_id)}
        for block in Block.objects.filter(series__run_id=head.run_id, data__isnull=False).order_by("id").iterator(200):
            _write(apps, [series[block.series_id]] * block.count, unpack(block.data))
        newer = Batch.objects.filter(run_id=head.run_id, revision__gt=head.sealed_revision).order_by("revision")
        for batch in newer.iterator(50):
            owners = [series.get(pk) for pk in batch.series]
            _write(apps, [owners[place] for place in np.frombuffer(batch.index, "<u2")], unpack(batch.data))


def _write(apps, owners, points):
    Point = apps.get_model("metrics", "Point")
    columns = zip(owners, points.steps.tolist(), points.values.tolist(), points.times.tolist(), strict=True)
    Point.objects.bulk_create(
        [
            Point(
                run_id=owner.run_id, attempt=owner.attempt, name=owner.name[:_MAX_NAME], step=step, value=value,
                measured=owner.measured, at=datetime.fromtimestamp(time, UTC),
            )
            for owner, step, value, time in columns
        ],
        batch_size=2000,
    )  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("metrics", "0002_packed_series"), ("runs", "0004_tamper_flags")]

    operations = [migrations.RunPython(pack_points, unpack_points)]
