"""Distributions: exact while small, within 1 % after, and merging is the same as adding."""

import json
import random

import numpy as np
import pytest

from apps.metrics.sketch import MOST_EXACT, RELATIVE_ERROR, from_json, merged, of_values

SHARES = [0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0]


def test_few_values_are_exact_and_interpolated_as_percentile_cont():
    sketch = of_values([1.5, 2.5, 3.5, 4.5] * 20)
    assert sketch.exact is not None
    values = [1.5, 2.5, 3.5, 4.5] * 20
    assert sketch.quantiles(SHARES) == pytest.approx([float(np.quantile(values, share)) for share in SHARES])
    assert (sketch.low, sketch.high, sketch.mean) == (1.5, 4.5, 3.0)
    assert sketch.bins([0.0, 2.0, 4.0]) == [20, 60]  # what lies outside is in the outer bins


def draws(name: str, count: int) -> list[float]:
    rng = random.Random(7)
    return {
        "lognormal": [rng.lognormvariate(1, 1.5) for _ in range(count)],
        "both signs": [rng.gauss(0, 3) for _ in range(count)],
        "tiny and huge": [10.0 ** rng.uniform(-8, 12) for _ in range(count)],
        "lengths": [float(rng.randrange(1, 4096)) for _ in range(count)],
    }[name]


@pytest.mark.parametrize("name", ["lognormal", "both signs", "tiny and huge", "lengths"])
def test_percentiles_of_many_values_are_within_the_error(name):
    values = draws(name, 20_000)
    sketch = of_values(values)
    assert sketch.exact is None
    ordered = sorted(values)
    for share, found in zip(SHARES, sketch.quantiles(SHARES), strict=True):
        rank = share * (len(values) - 1)
        low, high = ordered[int(rank)], ordered[min(int(rank) + 1, len(values) - 1)]
        error = RELATIVE_ERROR * max(abs(low), abs(high)) * (1 + 1e-9)
        assert low - error <= found <= high + error, share
    assert len(sketch.buckets) + len(sketch.negative) < 2500


@pytest.mark.parametrize("size", [40, 3000])
def test_merging_is_the_same_as_adding(size):
    parts = [draws("lognormal", size)[i::3] for i in range(3)]
    whole = of_values(draws("lognormal", size))
    together = merged(of_values(part) for part in parts)
    assert together.count == whole.count == size
    assert together.quantiles(SHARES) == pytest.approx(whole.quantiles(SHARES))
    assert (together.exact is None) == (size > MOST_EXACT)
    assert together.total == pytest.approx(whole.total)


def test_a_sketch_survives_json():
    for values in ([0.0, 1.0, 1.0, -2.5], draws("both signs", 1000)):
        sketch = of_values([*values, float("nan"), float("inf")])
        again = from_json(json.loads(json.dumps(sketch.to_json(), allow_nan=False)))
        assert again == sketch
        assert again.not_finite == 2
        assert again.count == len(values)


def test_nothing_has_no_percentile():
    assert from_json({}) == of_values([])  # a new row
    assert of_values([]).quantile(0.5) is None
    assert of_values([float("nan")]).mean is None
    huge = of_values([1.7e308, 1.7e308])
    json.dumps(huge.to_json(), allow_nan=False)
