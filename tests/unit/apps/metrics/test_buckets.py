"""Few points for many: extremes of every bucket are there, exact, and nothing is invented."""

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.metrics.buckets import thin, thin_summaries
from apps.metrics.packing import BLOCK_POINTS, Points, pack, summarise, unpack


def points(steps, values) -> Points:
    return Points(np.array(steps, np.int64), np.array(values, np.float64), np.zeros(len(steps)))


def test_points_survive_packing_bit_by_bit():
    made = points([-(2**60), 0, 5, 5], [math.nan, math.inf, -math.inf, -0.0])
    again = unpack(pack(made))
    assert again.steps.tolist() == made.steps.tolist()
    assert again.values.tobytes() == made.values.tobytes()


def test_few_points_stay_as_they_are():
    made = points([1, 2, 3], [1.0, math.nan, 3.0])
    thinned = thin(made, 2)
    assert thinned.steps == [1, 2, 3]
    assert math.isnan(thinned.values[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 3000))
def test_every_bucket_keeps_its_extremes(seed, buckets, count):
    rng = random.Random(seed)
    steps = sorted(rng.randrange(0, 5000) for _ in range(count))
    values = [rng.choice([rng.gauss(0, 1), rng.gauss(0, 1e6), math.nan, math.inf]) for _ in range(count)]
    made = points(steps, values)
    thinned = thin(made, buckets)
    assert len(thinned.steps) <= 3 * buckets or count <= 2 * buckets
    assert thinned.steps == sorted(thinned.steps)
    stored = {(s, repr(v)) for s, v in zip(steps, values, strict=True)}
    assert {(s, repr(v)) for s, v in zip(thinned.steps, thinned.values, strict=True)} <= stored
    finite, kept = [v for v in values if math.isfinite(v)], [v for v in thinned.values if math.isfinite(v)]
    assert (min(finite, default=0), max(finite, default=0)) == (min(kept, default=0), max(kept, default=0))
    assert any(not math.isfinite(v) for v in values) == any(not math.isfinite(v) for v in thinned.values)


def test_a_single_spike_of_a_long_series_is_never_lost_by_summaries():
    values = np.zeros(200_000)
    values[123_457], values[77_777], values[5] = 9.0, -4.0, math.nan
    made = points(np.arange(200_000), values)
    blocks = [made.where(slice(at, at + BLOCK_POINTS)) for at in range(0, len(made), BLOCK_POINTS)]
    shuffled = [summarise(block) for block in blocks]
    random.Random(1).shuffle(shuffled)
    thinned = thin_summaries(shuffled, 50)
    found = dict(zip(thinned.steps, thinned.values, strict=True))
    assert found[123_457] == 9.0
    assert found[77_777] == -4.0
    assert math.isnan(found[5])
    assert len(thinned.steps) <= 101
    assert thinned.steps == sorted(thinned.steps)
