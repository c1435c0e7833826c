"""Points of an installation that is upgraded are all there afterwards, and again after a way back."""

import math
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from apps.metrics import sealing
from apps.metrics.histograms import LATENCY, REWARD, STALENESS, by_position
from apps.metrics.news import points_since
from apps.metrics.reading import read_series
from apps.runs.models import Run
from tests.support.worlds import make_world, run_spec

OLD, NEW = [("metrics", "0001_initial")], [("metrics", "0005_fast_compression")]


def migrate(target):
    executor = MigrationExecutor(connection)
    executor.migrate(target)
    return MigrationExecutor(connection).loader.project_state(target).apps


@pytest.mark.django_db(transaction=True)
def test_an_upgrade_carries_every_point_and_a_downgrade_brings_them_back():
    world = make_world()
    run = Run.objects.create(
        project=world.project, number=1, spec=run_spec(), spec_hash="x" * 64, suite=world.suite, policy=world.policy
    )
    try:
        Point = migrate(OLD).get_model("metrics", "Point")
        at = datetime(2026, 1, 2, tzinfo=UTC)
        rows = [("train/loss", step, step / 7, 1, False) for step in range(12_000)]  # more than one batch
        rows += [("train/loss", 12_000, math.nan, 2, False), ("train/loss", 12_001, -math.inf, 2, False)]
        rows += [("group/reward_mean", 3, 0.25, 0, True), ("group/reward_mean", 3, 0.75, 0, True)]
        Point.objects.bulk_create(
            [Point(run_id=run.pk, name=n, step=s, value=v, attempt=a, measured=m, at=at) for n, s, v, a, m in rows]
        )
        make_group(world, run)
        migrate(NEW)
        found = {item.name: item for item in read_series(run, every_point=True).series}
        loss = found["train/loss"]
        assert (loss.num_points, loss.num_odd, loss.measured) == (12_002, 2, False)
        assert loss.steps == list(range(12_002))
        assert loss.values[:12_000] == [step / 7 for step in range(12_000)]
        assert math.isnan(loss.values[12_000])
        assert loss.values[12_001] == -math.inf
        group = found["group/reward_mean"]
        assert (group.steps, group.values, group.measured) == ([3, 3], [0.25, 0.75], True)
        assert points_since(run, 0).refetch is True
        assert run.metric_head.num_points == len(rows)
        assert by_position(run, REWARD)[2].quantiles([0.5, 1]) == [0.5, 1.0]
        assert by_position(run, LATENCY)[2].count == 2
        assert by_position(run, STALENESS)[1].mean == 1.0
        sealing.seal(run.pk)  # part of it is in blocks on the way back
        Point = migrate(OLD).get_model("metrics", "Point")
        back = Point.objects.order_by("name", "attempt", "step", "value")
        again = [(p.name, p.step, repr(p.value), p.attempt, p.measured) for p in back]
        assert sorted(again) == sorted((n, s, repr(v), a, m) for n, s, v, a, m in rows)
        assert set(back.values_list("at", flat=True)) == {at}
    finally:
        migrate(NEW)


def make_group(world, run):
    """Two episodes of a trained group, as an older version stored them: without distributions."""
    from apps.runs.models import Batch, Episode, Group

    batch = Batch.objects.create(run=run, attempt=1, index=0, state="trained", trained_at=run.created_at)
    group = Group.objects.create(
        project=world.project, run=run, task=world.suite.tasks.first(), purpose="train", size=2, state="closed",
        outcome="trained", batch=batch, age=1, policy_version=2, num_scored=2, uri="objects/aa/x",
    )  # fmt: skip
    for index, reward in enumerate((0.0, 1.0)):
        Episode.objects.create(
            group=group, index=index, seed=1, verdict="pass" if reward else "fail", reward=reward, reason_code="OK",
            stop_reason="answered", total_seconds=1.0 + index,
        )  # fmt: skip
