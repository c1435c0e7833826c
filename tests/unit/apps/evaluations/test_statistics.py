"""Statistics against reference values, independent formulas and simulated error rates."""

from math import inf, pi, sqrt

import numpy as np
import pytest
from scipy import stats

from apps.evaluations import statistics as s


def test_alpha_of_all_looks_sums_to_alpha():
    spent = [s.look_alpha(0.05, look) for look in range(1, 20_000)]
    assert spent[0] == pytest.approx(0.05 * 6 / pi**2)
    assert sum(spent) < 0.05
    assert sum(spent) == pytest.approx(0.05, abs=1e-5)
    with pytest.raises(ValueError, match="counted from 1"):
        s.look_alpha(0.05, 0)


@pytest.mark.parametrize("k, n", [(0, 10), (1, 10), (5, 10), (10, 10), (118, 296)])
def test_proportion_intervals_match_scipy(k, n):
    ours, theirs = s.wilson(k, n), stats.binomtest(k, n).proportion_ci(0.95, "wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    exact, reference = s.clopper_pearson(k, n), stats.binomtest(k, n).proportion_ci(0.95, "exact")
    assert (exact.low, exact.high) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_zero_events_need_299_tasks_for_less_than_one_percent():
    assert s.clopper_pearson(0, 299, 0.9).high < 0.01 < s.clopper_pearson(0, 298, 0.9).high


def test_one_task_per_cluster_is_the_paired_t_test():
    values = [0.0, 1.0, 1.0, -1.0, 0.5, 1.0, 0.0, 1.0]
    result = s.clustered_mean(values, [str(i) for i in range(8)], alpha=0.05)
    reference = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert result.degrees_of_freedom == pytest.approx(7)
    assert (result.low, result.high) == pytest.approx((reference.low, reference.high))


def test_equal_clusters_have_the_textbook_error():
    rng = np.random.default_rng(3)
    values, clusters = rng.normal(size=40), np.repeat(np.arange(10), 4)
    sums = np.array([(values[clusters == c] - values.mean()).sum() for c in range(10)])
    result = s.clustered_mean(values.tolist(), clusters.astype(str).tolist(), 0.05)
    assert result.standard_error == pytest.approx(sqrt(10 / 9 * (sums**2).sum()) / 40)
    assert result.degrees_of_freedom == pytest.approx(9)
    assert result.effective_clusters == pytest.approx(10)


def test_cr2_matches_matrix_formula_on_unequal_clusters():
    rng = np.random.default_rng(5)
    sizes = [1, 2, 3, 5, 9]
    cluster = np.repeat(np.arange(5), sizes)
    y, n = rng.normal(size=20) + 2.0 * rng.normal(size=5)[cluster], 20
    hat = np.full((n, n), 1 / n)
    residual, variance = y - y.mean(), 0.0
    columns = []
    for c in range(5):
        rows = np.flatnonzero(cluster == c)
        block = np.eye(len(rows)) - hat[np.ix_(rows, rows)]
        value, vector = np.linalg.eigh(block)
        adjust = vector @ np.diag(value**-0.5) @ vector.T
        variance += float(np.ones(len(rows)) @ adjust @ residual[rows]) ** 2 / n**2
        columns.append((np.eye(n) - hat)[:, rows] @ adjust @ np.ones(len(rows)) / n)
    g = np.array(columns).T
    groups = [y[cluster == c] for c in range(5)]
    msb = sum(len(v) * (v.mean() - y.mean()) ** 2 for v in groups) / 4
    msw = sum(((v - v.mean()) ** 2).sum() for v in groups) / 15
    component = max(0.0, (msb - msw) / ((n - sum(k * k for k in sizes) / n) / 4))
    same = (cluster[:, None] == cluster[None, :]).astype(float)
    rho = component / (component + msw)
    phi = (1 - rho) * np.eye(n) + rho * same
    form = g.T @ phi @ g
    assert 0 < rho < 1
    result = s.clustered_mean(y.tolist(), cluster.astype(str).tolist(), 0.05)
    assert result.standard_error == pytest.approx(sqrt(variance))
    assert result.degrees_of_freedom == pytest.approx(np.trace(form) ** 2 / (form**2).sum())


def test_one_large_cluster_is_not_trusted():
    clusters = ["a"] * 10 + [f"c{i}" for i in range(10)]
    assert not s.clustered_mean([0.1] * 20, clusters, 0.05).trusted
    assert s.clustered_mean([0.1] * 20, [str(i % 10) for i in range(20)], 0.05).trusted
    alone = s.clustered_mean([1.0, 0.0], ["a", "a"], 0.05)
    assert (alone.low, alone.high) == (-inf, inf) and not alone.trusted


def _rejections(sizes: list[int], *, repeats: int, cr2: bool, seed: int) -> float:
    """Share of null experiments (paired successes with an effect common to a cluster) called better at .05."""
    rng = np.random.default_rng(seed)
    names = np.repeat(np.arange(len(sizes)), sizes).astype(str).tolist()
    count = 0
    for _ in range(repeats):
        shift = np.repeat(rng.normal(0, 0.8, len(sizes)), sizes)
        level = rng.normal(0, 1, len(names))
        better = rng.random(len(names)) < 1 / (1 + np.exp(-(level + shift)))
        before = rng.random(len(names)) < 1 / (1 + np.exp(-(level - shift)))
        d = better.astype(float) - before
        low = s.clustered_mean(d.tolist(), names if cr2 else [str(i) for i in range(len(d))], 0.05).low
        count += low > 0
    return count / repeats


def test_error_rate_holds_for_equal_and_zipf_clusters_where_naive_does_not():
    zipf = [max(1, int(60 / (i + 1))) for i in range(20)]
    assert _rejections([8] * 20, repeats=1200, cr2=True, seed=1) < 0.067
    assert _rejections(zipf, repeats=1200, cr2=True, seed=2) < 0.06
    assert _rejections(zipf, repeats=400, cr2=False, seed=2) > 0.12


def test_wild_bootstrap_agrees_with_t_and_is_seeded():
    rng = np.random.default_rng(0)
    values, names = rng.normal(0.3, 1, 80), [str(i % 20) for i in range(80)]
    p = s.wild_cluster_p(values.tolist(), names, seed=4)
    result = s.clustered_mean(values.tolist(), names, 0.05)
    reference = stats.t.sf(result.estimate / result.standard_error, result.degrees_of_freedom)
    assert p == pytest.approx(reference, abs=0.02)
    assert p == s.wild_cluster_p(values.tolist(), names, seed=4)
    assert s.wild_cluster_p([0.0] * 10, [str(i) for i in range(10)]) == 1.0


def test_rate_difference_without_events_is_bounded_by_the_exact_interval():
    names = [str(i) for i in range(100)]
    none = s.clustered_rate_difference([0.0] * 100, [0.0] * 100, names, 0.05)
    assert none.estimate == 0
    assert none.high == pytest.approx(1 - 0.05 ** (1 / 100))
    many = s.clustered_rate_difference([1.0] * 30 + [0.0] * 70, [0.0] * 100, names, 0.05)
    assert many.high == s.clustered_mean([1.0] * 30 + [0.0] * 70, names, 0.05).high


def test_ratio_of_means_covers_and_refuses_zero():
    rng = np.random.default_rng(9)
    names, hits = [str(i // 3) for i in range(90)], 0
    for _ in range(400):
        size = rng.gamma(4, 10, 90)
        result = s.ratio_of_means(
            (1.2 * size * rng.gamma(20, 1 / 20, 90)).tolist(), (size * rng.gamma(20, 1 / 20, 90)).tolist(), names, 0.05
        )
        hits += result.low <= 1.2 <= result.high
    assert 0.86 <= hits / 400 <= 0.95
    with pytest.raises(ValueError, match="positive"):
        s.ratio_of_means([0.0], [1.0], ["a"], 0.05)


def test_quantile_ratio_is_seeded_and_finds_a_slower_arm():
    rng = np.random.default_rng(2)
    names = [str(i // 2) for i in range(100)]
    before = [rng.gamma(5, 0.2, 2).tolist() for _ in names]
    slower = [[1.5 * value for value in task] for task in before]
    result = s.quantile_ratio(slower, before, names, 0.95, 0.05, seed=1)
    assert result.estimate == pytest.approx(1.5)
    assert (result.low, result.high) == pytest.approx((1.5, 1.5))
    other = [rng.gamma(5, 0.2, 2).tolist() for _ in names]
    first = s.quantile_ratio(other, before, names, 0.95, 0.05, seed=1)
    assert first == s.quantile_ratio(other, before, names, 0.95, 0.05, seed=1)
    assert first.low < 1 < first.high


def test_quantile_ratio_bootstrap_matches_a_plain_loop():
    rng = np.random.default_rng(4)
    names = ["a", "a", "b", "c", "c", "c", "d"]
    arms = [[rng.gamma(3, 1, rng.integers(1, 4)).tolist() for _ in names] for _ in range(2)]
    found = s.quantile_ratio(*arms, names, 0.9, 0.1, seed=8, num_draws=300)
    counts = np.random.default_rng(8).multinomial(4, [0.25] * 4, size=300)
    ratios = []
    for count in counts:
        drawn = []
        for arm in arms:
            pool = [v for task, name in zip(arm, names, strict=True) for v in task * count["abcd".index(name)]]
            drawn.append(np.quantile(pool, 0.9, method="inverted_cdf"))
        ratios.append(drawn[0] / drawn[1])
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(ratios, [0.1, 0.9])))


def test_quantile_ratio_covers():
    rng = np.random.default_rng(11)
    names, hits = [str(i // 2) for i in range(120)], 0
    for repeat in range(200):
        before, after = rng.gamma(5, 0.2, (120, 1)), rng.gamma(5, 0.2, (120, 1))
        result = s.quantile_ratio(after.tolist(), before.tolist(), names, 0.95, 0.05, seed=repeat, num_draws=200)
        hits += result.low <= 1 <= result.high
    assert 0.84 <= hits / 200 <= 0.97


@pytest.mark.parametrize("better, worse", [(0, 0), (3, 9), (34, 16), (5, 5)])
def test_mcnemar_matches_the_binomial_test(better, worse):
    two, one = s.mcnemar_exact(better, worse), s.mcnemar_exact(better, worse, one_sided=True)
    if better + worse == 0:
        assert two == one == 1.0
        return
    assert two == pytest.approx(stats.binomtest(better, better + worse).pvalue)
    assert one == pytest.approx(stats.binomtest(worse, better + worse, alternative="greater").pvalue)


def test_power_numbers():
    effect = s.minimum_detectable_effect(0.02, 1e6, 0.05)
    assert effect == pytest.approx(0.02 * (1.6449 + 0.8416), abs=1e-4)
    assert s.minimum_detectable_effect(0.02, 0, 0.05) == inf
    assert s.planned_standard_error(400, 1) == pytest.approx(0.025)
    assert s.planned_standard_error(400, 8) < s.planned_standard_error(400, 1)
    assert s.tasks_to_decide(0.04, 0.08, 0.0, 100) == 300
    assert s.tasks_to_decide(0.0, 0.08, 0.0, 100) is None
