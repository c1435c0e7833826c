"""Claim: a series of 1,000,000 points is bucketed to 1,000 in less than 100 ms, and 10,000,000 points stay cheap.

Points are stored the way ingest stores them (batches, sealed into blocks) in a PostgreSQL that syncs: ten series of
1,000,000 points in ten runs of one project. Read: one whole series as 1,000 buckets (lowest and highest of each, 2,000
points) and as the default 1,000 points; a zoom on a hundredth of it; the newest points since a cursor. Then the size of
tables and indices on disk, by point. Prints one JSON object.
Run: `python benchmarks/series.py [--series N] [--reads N]`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _plane import conditions, plane

AIM_MS = 100.0
LENGTH, BATCH = 1_000_000, 50_000


def fill(run: Any, length: int, seed: int) -> float:
    """Store one series by batches; returns points a second."""
    import numpy as np

    from apps.metrics.services import STORED, store_batch
    from gpu_workers.contracts.points import PointBatch

    values = np.random.default_rng(seed).normal(size=length)
    values[length // 3] = 99.0  # the spike that must not be lost
    started = time.perf_counter()
    for seq, start in enumerate(range(0, length, BATCH)):
        steps = np.arange(start, start + BATCH, dtype="<i8")
        times = np.full(BATCH, time.time())
        batch = PointBatch(
            run_id=str(run.pk), source="bench", seq=seq, sent_at=time.time(), names=["bench/loss"],
            series=bytes(2 * BATCH), steps=steps.tobytes(), values=values[start : start + BATCH].tobytes(),
            times=times.tobytes(),
        )  # fmt: skip
        assert store_batch(batch) == STORED
    return length / (time.perf_counter() - started)


def timed(reads: int, call: Callable[[int], Any]) -> dict[str, float]:
    times = []
    for number in range(reads):
        started = time.perf_counter()
        call(number)
        times.append(1000 * (time.perf_counter() - started))
    ordered = sorted(times)
    return {"p50_ms": round(statistics.median(ordered), 1), "worst_ms": round(ordered[-1], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=10)
    parser.add_argument("--reads", type=int, default=30)
    options = parser.parse_args()
    with plane("heartbeat"):
        from django.db import connection

        from apps.metrics.news import points_since
        from apps.metrics.reading import read_series
        from apps.runs.models import Run
        from tests.support.worlds import make_world, run_spec

        world = make_world()
        runs = [
            Run.objects.create(
                project=world.project, number=number, spec=run_spec(), spec_hash="x" * 64, suite=world.suite,
                policy=world.policy,
            )
            for number in range(1, options.series + 1)
        ]  # fmt: skip
        rates = [fill(run, LENGTH, seed) for seed, run in enumerate(runs)]
        pick = lambda number: runs[number % len(runs)]  # noqa: E731

        def whole(number: int, most: int) -> None:
            found = read_series(pick(number), ["bench/loss"], most=most).series[0]
            assert found.num_points == LENGTH and 99.0 in found.values and len(found.steps) <= most

        whole(0, 2000)  # connection, plans
        result = {
            "thousand_buckets": timed(options.reads, lambda number: whole(number, 2000)),
            "thousand_points": timed(options.reads, lambda number: whole(number, 1000)),
            "zoom_on_a_hundredth": timed(
                options.reads, lambda number: read_series(pick(number), ["bench/loss"], low=400_000, high=409_999)
            ),
            "nothing_new": timed(options.reads, lambda number: points_since(pick(number), LENGTH // BATCH)),
            "stored_points_a_second": round(statistics.median(rates)),
        }
        with connection.cursor() as cursor:
            sizes = {}
            for table in ("metricblock", "metricbatch", "metricseries"):
                cursor.execute(
                    "SELECT pg_total_relation_size(%s), count(*) FROM metrics_" + table, [f"metrics_{table}"]
                )
                sizes[table] = dict(zip(("bytes", "rows"), cursor.fetchone(), strict=True))
        points = LENGTH * options.series
        result |= {"points": points, "tables": sizes}
        result["bytes_a_point"] = round(sum(size["bytes"] for size in sizes.values()) / points, 1)
        result |= conditions()
        result["ok"] = result["thousand_buckets"]["p50_ms"] < AIM_MS
        print(json.dumps(result))


if __name__ == "__main__":
    main()
