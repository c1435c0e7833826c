"""The interval of a clustered rate against exact ones and hand-computed numbers."""

import random

import pytest
from scipy.stats import beta

from apps.evaluations.rare_rates import clustered_rate
from apps.evaluations.statistics import clopper_pearson


def test_independent_episodes_give_the_exact_interval():
    """Clusters of one: p(1 − p) over the variance is n − 1 instead of n, and the t-quantiles cancel."""
    interval = clustered_rate([1] * 10 + [0] * 90, [1] * 100)
    low, high = clopper_pearson(10, 100).low, clopper_pearson(10, 100).high
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=2e-3)
    assert interval.low <= low and interval.high >= high


def test_a_hand_computed_case():
    """Two hits of ten in one of four clusters: p = 2/40, Σ(x − pn)² = 2.25 + 3·0.25 = 3, variance 4/3·3/1600 = 0.0025.

    Effective: 0.0475/0.0025 = 19, times (2.0227/3.1824)² = 0.40397 gives 7.675.
    """
    interval = clustered_rate([2, 0, 0, 0], [10] * 4)
    n = 19 * (2.0226909 / 3.1824463) ** 2
    assert n == pytest.approx(7.675, abs=1e-3)
    assert interval.low == pytest.approx(beta.ppf(0.025, 0.05 * n, 0.95 * n + 1))
    assert interval.high == pytest.approx(beta.ppf(0.975, 0.05 * n + 1, 0.95 * n))


def test_none_seen_is_not_none_there():
    """With no hit each cluster counts once: 20 clusters of 50 say no more than 20 observations (1 − 0.025^(1/20))."""
    interval = clustered_rate([0] * 20, [50] * 20)
    assert interval.low == 0.0 and interval.high == pytest.approx(1 - 0.025 ** (1 / 20))
    every = clustered_rate([50] * 20, [50] * 20)
    assert every.high == 1.0 and every.low == pytest.approx(0.025 ** (1 / 20))


@pytest.mark.parametrize(("hits", "sizes"), [([], []), ([0], [9]), ([3], [9]), ([0, 0], [0, 9])])
def test_one_cluster_says_nothing(hits, sizes):
    interval = clustered_rate(hits, sizes)
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="more hits"):
        clustered_rate([2, 0], [1, 1])


def test_it_covers_the_truth_where_clusters_agree_within():
    """Clusters all right or all wrong (correlation 1), 40 of 5 episodes, true rate .2: at least 93 % of 400 draws."""
    generator = random.Random(3)
    covered = 0
    for _ in range(400):
        hits = [5 * (generator.random() < 0.2) for _ in range(40)]
        interval = clustered_rate(hits, [5] * 40)
        covered += interval.low <= 0.2 <= interval.high
    assert covered >= 0.93 * 400
