"""Gaps between tokens out of cumulative histograms."""

import math

import pytest

from gpu_workers.weights.gaps import longest_gap

BEFORE = {0.1: 5.0, 0.2: 9.0, 1.0: 9.0, math.inf: 9.0}


@pytest.mark.parametrize(
    ("after", "longest"),
    [
        (BEFORE, None),
        ({0.1: 8.0, 0.2: 12.0, 1.0: 12.0, math.inf: 12.0}, 0.1),
        ({0.1: 6.0, 0.2: 11.0, 1.0: 11.0, math.inf: 11.0}, 0.2),
        ({0.1: 5.0, 0.2: 9.0, 1.0: 10.0, math.inf: 10.0}, 1.0),
        ({0.1: 5.0, 0.2: 9.0, 1.0: 9.0, math.inf: 10.0}, 1.0),
        ({0.1: 0.0, 0.2: 1.0, 1.0: 1.0, math.inf: 1.0}, 0.2),
    ],
    ids=["nothing new", "short", "middle", "long", "beyond the last bound", "restarted"],
)
def test_longest_gap(after: dict[float, float], longest: float | None) -> None:
    assert longest_gap(BEFORE, after) == longest
