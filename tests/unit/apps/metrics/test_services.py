"""Points are stored once, whatever the order; bad ones are refused with a reason; series read back whole."""

import math
import random
import time

import msgspec
import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.metrics import jobs, journal, reading, sealing
from apps.metrics.maintenance import seal_idle
from apps.metrics.models import MetricBatch, MetricBlock, MetricHead
from apps.metrics.news import points_since
from apps.metrics.reading import TooManyPoints, newest_points, read_series, reported_value, totals
from apps.metrics.services import DUPLICATE, STORED, store_batch, store_points
from apps.runs.models import RunAttempt
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.points import MAX_POINTS


def values(run, name, **range_):
    found = read_series(run, [name], every_point=True, **range_).series
    return dict(zip(found[0].steps, found[0].values, strict=True)) if found else {}


def test_batches_in_any_order_and_number_are_stored_once(run, batch):
    batches = [batch(seq, [("loss", seq * 10 + i, float(seq)) for i in range(10)]) for seq in range(20)]
    order = [*range(20), *range(20)]
    random.Random(3).shuffle(order)
    outcomes = [store_batch(batches[seq]) for seq in order]
    assert outcomes.count(STORED) == outcomes.count(DUPLICATE) == 20
    assert values(run, "loss") == {step: float(step // 10) for step in range(200)}
    head = MetricHead.objects.get(run=run)
    assert (head.revision, head.num_points) == (20, 200)
    # The same number of another stream or attempt is another batch.
    assert store_batch(batch(0, [("loss", 999, 1.0)], source="other")) == STORED
    assert store_batch(batch(0, [("loss", 0, 1.0)], attempt=1)) == STORED


def test_nan_and_infinities_are_kept_as_such(run, batch):
    sent = [("loss", 0, math.nan), ("loss", 1, math.inf), ("loss", 2, -math.inf), ("loss", 3, 0.0)]
    assert jobs.ingest_points(jsonable(batch(0, sent))) == STORED
    for _ in range(2):  # out of the journal, then out of blocks
        found = values(run, "loss")
        assert math.isnan(found[0])
        assert (found[1], found[2], found[3]) == (math.inf, -math.inf, 0.0)
        assert [point[3] for point in points_since(run, 0).points] == ["NaN", "Infinity", "-Infinity", 0.0]
        sealing.seal(run.pk)
    block = MetricBlock.objects.get()
    assert (block.num_nan, block.num_inf, block.num_negative_inf, block.low, block.high) == (1, 1, 1, 0.0, 0.0)
    assert read_series(run, ["loss"]).series[0].num_odd == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run_id": "x"}, "unknown run"),
        ({"run_id": "00000000-0000-0000-0000-000000000000"}, "unknown run"),
        ({"seq": -1}, "seq of 0 or more"),
        ({"source": ""}, "needs a source"),
        ({"names": []}, "names no series"),
        ({"names": [""]}, "names no series"),
        ({"values": b"1234"}, "differ in length"),
        ({"token": 5, "attempt": 1}, "dead attempt 1"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(run, batch, changes, reason):
    points = [("a", 0, 1.0)] if "names" in changes else [("a", 0, 1.0), ("b", 0, 1.0)]
    bad = msgspec.structs.replace(batch(0, points), **changes)
    assert reason in store_batch(bad)
    assert not MetricBatch.objects.exists()


def test_a_batch_that_is_too_large_or_unreadable_is_refused(run, batch):
    assert f"1 to {MAX_POINTS}" in store_batch(batch(0, [("a", step, 0.0) for step in range(MAX_POINTS + 1)]))
    assert "malformed batch" in jobs.ingest_points({"run_id": str(run.pk)})
    assert "malformed batch" in jobs.ingest_points(jsonable(batch(0, [("a", 0, 1.0)])) | {"values": "%%%"})
    assert not MetricBatch.objects.exists()


def test_names_are_bounded_with_a_count(run, batch, monkeypatch):
    monkeypatch.setattr(journal, "MAX_SERIES", 5)
    for seq in range(3):
        points = [("loss", seq, 1.0), *((f"user {seq}-{i}", seq, 1.0) for i in range(100))]
        assert store_batch(batch(seq, points)) == STORED
    head = MetricHead.objects.get(run=run)
    assert (head.num_series, head.num_points, head.num_refused_points) == (5, 7, 296)
    assert values(run, "loss") == {0: 1.0, 1: 1.0, 2: 1.0}
    assert run.events.filter(code="metric_names_bounded").count() == 1
    told = points_since(run, 0).points
    assert (len(told), [point[2] for point in told if point[1] == "loss"]) == (7, [0, 1, 2])
    sealing.seal(run.pk)
    assert sum(MetricBlock.objects.values_list("count", flat=True)) == 7


def test_batches_of_before_that_name_series_never_made_are_told_without_them(run, batch):
    store_batch(batch(0, [("loss", 0, 1.0)]))
    row = MetricBatch.objects.get()
    MetricBatch.objects.update(series=[*row.series, 0])
    assert [point[1:3] for point in points_since(run, 0).points] == [["loss", 0]]


@pytest.mark.parametrize(("one", "other"), [("L" * 300 + "a", "L" * 300 + "b"), ("q\x00", "q\ufffd"), ("a", "a")])
def test_names_that_become_one_are_one_series_and_nothing_else_is_lost(run, batch, one, other):
    sent = batch(0, [(one, 0, 1.0), (other, 0, 2.0), (one, 1, 3.0), ("loss", 0, 4.0), ("loss", 0, 5.0)])
    if one == other:
        index = np.array([0, 1, 0, 2, 2], "<u2").tobytes()
        sent = msgspec.structs.replace(sent, names=["a", "a", "loss"], series=index)
    assert [store_batch(sent), store_batch(sent)] == [STORED, DUPLICATE]
    told = [tuple(point[1:4]) for point in points_since(run, 0).points]
    name = one.replace("\x00", "\ufffd")[:120]
    assert sorted(told) == sorted([(name, 0, 2.0), (name, 1, 3.0), ("loss", 0, 4.0), ("loss", 0, 5.0)])
    head = MetricHead.objects.get(run=run)
    assert (head.num_points, head.num_series, head.num_refused_points) == (4, 2, 1)
    assert run.events.filter(code="metric_names_collide").count() == 1


def test_names_of_reports_are_cut_like_those_of_batches(run):
    store_points(run, 1, {"n" * 130 + "a": 1.0, "n" * 130 + "b": 2.0, "loss": 3.0}, measured=False, at=run.created_at)
    assert (values(run, "n" * 120), values(run, "loss")) == ({1: 2.0}, {1: 3.0})


def test_steps_that_are_no_numbers_in_javascript_are_left_out_with_a_count(run, batch):
    most = 2**53 - 1
    sent = [("loss", step, 1.0) for step in (most, most + 1, -most, -most - 1, 2**63 - 1, -(2**63), 0)]
    assert store_batch(batch(0, sent)) == STORED
    assert store_batch(batch(1, [("loss", 2**60, 1.0)])) == STORED
    assert sorted(point[2] for point in points_since(run, 0).points) == [-most, 0, most]
    head = MetricHead.objects.get(run=run)
    assert (head.num_points, head.num_refused_points) == (3, 5)
    assert run.events.filter(code="metric_steps_bounded").count() == 1


def test_a_clock_that_is_ahead_moves_the_times_one_behind_does_not(run, batch):
    now = time.time()
    store_batch(batch(0, [("loss", 0, 1.0, now + 7200)], sent_at=now + 7200))
    store_batch(batch(1, [("loss", 1, 1.0, now - 7200)], sent_at=now - 7200))
    store_batch(batch(2, [("loss", 2, 1.0, math.nan)], sent_at=now))
    none, earlier, later = newest_points(run, "loss", 3)
    assert later[2] == pytest.approx(now, abs=60)
    assert earlier[2] == pytest.approx(now - 7200, abs=60)
    assert none[2] == pytest.approx(now, abs=60)
    skews = list(MetricBatch.objects.order_by("seq").values_list("skew_seconds", flat=True))
    assert skews == [pytest.approx(-7200, abs=60), pytest.approx(7200, abs=60), pytest.approx(0, abs=60)]


def test_sealing_changes_nothing_that_is_read(run, batch):
    rng = random.Random(5)
    truth: dict[str, dict[int, float]] = {"a": {}, "b": {}, "rare": {}}
    step = 0
    for seq in range(12):
        points = []
        for _ in range(rng.randrange(1, 900)):
            name = rng.choice(["a", "a", "b"]) if rng.random() > 0.001 else "rare"
            truth[name][step] = rng.random()
            points.append((name, step, truth[name][step]))
            step += 1
        assert store_batch(batch(seq, points)) == STORED
        if rng.random() < 0.5:
            sealing.seal(run.pk)
        for name, expected in truth.items():
            assert values(run, name) == expected
    sealing.seal(run.pk)
    assert sealing.seal(run.pk) == 0
    assert {name: values(run, name) for name in truth} == truth
    assert all(count <= 512 for count in MetricBlock.objects.values_list("count", flat=True))
    blocks = MetricBlock.objects.filter(series__name="a")
    assert blocks.count() == math.ceil(len(truth["a"]) / 512)  # open blocks are filled, not left
    assert totals(run, ["a", "b"]) == {name: pytest.approx(sum(truth[name].values())) for name in ("a", "b")}
    middle = step // 2
    inside = {s: v for s, v in truth["a"].items() if middle <= s <= middle + 700}
    assert values(run, "a", low=middle, high=middle + 700) == inside


def test_a_receipt_outlives_its_replay(run, batch):
    first = batch(0, [("a", 0, 1.0)])
    store_batch(first)
    for seq in (1, 2):
        sealing.seal(run.pk)
        store_batch(batch(seq, [("a", seq, 1.0)]))
    assert store_batch(first) == DUPLICATE
    assert values(run, "a") == {0: 1.0, 1: 1.0, 2: 1.0}
    assert points_since(run, 0).refetch is True  # batch 0 cannot be replayed any more
    again = points_since(run, 1)
    assert ([point[2] for point in again.points], again.cursor) == ([1, 2], 3)
    assert points_since(run, 99).refetch is True  # a cursor of another database
    assert points_since(run, 3).points == []


def test_a_later_attempt_replaces_what_earlier_ones_said_from_its_first_step_on(run, batch):
    store_batch(batch(0, [("loss", step, 1.0) for step in range(6)], attempt=1))
    sealing.seal(run.pk)
    store_batch(batch(0, [("loss", step, 2.0) for step in (4, 5)], attempt=2))
    assert values(run, "loss") == {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 2.0, 5: 2.0}
    assert reported_value(run, "loss", 4) == 2.0
    assert reported_value(run, "loss", 9) is None


def test_long_series_are_read_from_summaries(run, batch, monkeypatch):
    """From few rows: 200 blocks here, without their points."""
    noise = np.random.default_rng(1).normal(size=100_000)
    noise[[54_321, 98_765]] = [50.0, math.nan]
    for seq in range(10):
        rows = [("loss", step, float(noise[step])) for step in range(seq * 10_000, (seq + 1) * 10_000)]
        store_batch(batch(seq, rows))
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = read_series(run, ["loss"], most=100).series[0]
    assert len(queries) <= 5
    assert found.num_points == 100_000
    assert len(found.steps) <= 102
    assert dict(zip(found.steps, found.values, strict=True))[54_321] == 50.0
    assert found.num_odd == 1
    monkeypatch.setattr(reading, "EVERY_POINT_LIMIT", 1000)
    with pytest.raises(TooManyPoints, match="name fewer series"):
        read_series(run, ["loss"], every_point=True)


def test_many_series_are_read_with_few_statements(run, batch, monkeypatch):
    store_batch(batch(0, [(f"m{i}", step, float(i)) for i in range(50) for step in range(3)]))
    sealing.seal(run.pk)
    monkeypatch.setattr(reading, "_BLOCKS_AT_ONCE", 20)
    with CaptureQueriesContext(connection) as queries:
        found = read_series(run).series
    assert len(queries) <= 8, "three portions of blocks"
    assert sorted((item.name, tuple(item.values)) for item in found) == sorted((f"m{i}", (i, i, i)) for i in range(50))


def test_idle_runs_are_sealed(run, batch):
    store_batch(batch(0, [("a", 0, 1.0)]))
    assert seal_idle() == 0
    MetricHead.objects.update(changed_at="2020-01-01T00:00:00Z")
    assert seal_idle() == 1
    assert MetricHead.objects.get().num_unsealed == 0


def test_a_living_trainers_token_is_needed_where_one_is_named(run, batch):
    RunAttempt.objects.create(run=run, number=1, token=9, lease_expires_at="2099-01-01T00:00:00Z")
    assert store_batch(batch(0, [("a", 0, 1.0)], attempt=1, token=9)) == STORED
    assert store_batch(batch(1, [("a", 0, 1.0)], attempt=1, token=8)) == "dead attempt 1"


def test_points_of_the_platform_are_numbered_like_all(run, batch):
    store_points(run, 1, {"rollout/reward_mean": 0.5, "rollout/success_share": None}, measured=True, at=run.created_at)
    store_batch(batch(0, [("rollout/reward_mean", 1, 0.9)]))
    assert values(run, "rollout/reward_mean") == {1: 0.5}  # measured counts, whatever a worker claims
    assert [point[0] for point in points_since(run, 0).points] == [1, 2]
