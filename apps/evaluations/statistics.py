"""Intervals, paired clustered comparisons and power: pure functions behind every verdict. Nothing here reads a clock,
a database or global randomness; whatever is random takes a seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MAX_CLUSTER_SHARE = 1 / 3  # one cluster above it and no interval is trusted
MIN_CLUSTERS = 5

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A point with one-sided bounds, each at level alpha: [low, high] covers with 1 − 2·alpha.

    `trusted` is False when there are too few clusters or one of them holds over a third of the tasks.
    """

    estimate: float
    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float
    num_tasks: int
    num_clusters: int
    effective_clusters: float
    largest_cluster_share: float

    @property
    def trusted(self) -> bool:
        return self.num_clusters >= MIN_CLUSTERS and self.largest_cluster_share <= MAX_CLUSTER_SHARE


def look_alpha(alpha: float, look: int) -> float:
    """Significance of look t = 1, 2, … at one held-out set: 6·alpha/(π²t²), which sums to alpha over all looks."""
    if look < 1:
        raise ValueError(f"look {look}: looks are counted from 1")
    return 6 * alpha / (pi * look) ** 2


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    if n == 0:
        return Interval(0.0, 1.0)
    z = float(stats.norm.ppf(0.5 + confidence / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Exact interval of a proportion (Clopper & Pearson 1934); one-sided bounds at alpha: confidence = 1 − 2·alpha."""
    if n == 0:
        return Interval(0.0, 1.0)
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.ppf(1 - tail, successes + 1, n - successes))
    return Interval(low, high)


def clustered_mean(values: Sequence[float], clusters: Sequence[str], alpha: float) -> Estimate:
    """Mean of one value per task with CR2 standard error and Satterthwaite degrees of freedom.

    CR2 of the intercept-only model: residual sums of a cluster are divided by sqrt(1 − n_c/n) (Bell & McCaffrey 2002).
    The degrees of freedom (Pustejovsky & Tipton 2018) use the intraclass correlation of the values as working model:
    taking tasks as independent passes 7 % of null experiments with Zipf sizes, a common effect per cluster under 1 %.
    """
    values_n = np.asarray(values, dtype=float)
    sums_g, sizes_g = _cluster_sums(values_n, clusters)
    n, num_clusters = len(values_n), len(sizes_g)
    mean = float(values_n.mean()) if n else 0.0
    shares_g = sizes_g / n if n else sizes_g
    if num_clusters < 2:
        return Estimate(mean, -inf, inf, inf, 0.0, n, num_clusters, float(num_clusters), 1.0 if n else 0.0)
    residuals_g = (sums_g - sizes_g * mean) / np.sqrt(1 - shares_g)
    standard_error = sqrt(float((residuals_g**2).sum())) / n
    freedom = _degrees_of_freedom(sizes_g, _intraclass_correlation(values_n, sums_g, sizes_g))
    half = float(stats.t.ppf(1 - alpha, freedom)) * standard_error
    return Estimate(
        mean,
        mean - half,
        mean + half,
        standard_error,
        freedom,
        n,
        num_clusters,
        float(1 / (shares_g**2).sum()),
        float(shares_g.max()),
    )


def _cluster_sums(values_n: Floats, clusters: Sequence[str]) -> tuple[Floats, Floats]:
    """Sum of the values and number of tasks of each cluster."""
    if len(values_n) != len(clusters):
        raise ValueError(f"{len(values_n)} values but {len(clusters)} clusters")
    _, index_n = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    num_clusters = int(index_n.max()) + 1 if len(index_n) else 0
    sums_g = np.bincount(index_n, weights=values_n, minlength=num_clusters).astype(np.float64)
    return sums_g, np.bincount(index_n, minlength=num_clusters).astype(np.float64)


def _intraclass_correlation(values_n: Floats, sums_g: Floats, sizes_g: Floats) -> float:
    """Share of the variance that lies between clusters, by one-way analysis of variance, clipped to [0, 1]."""
    n, num_clusters = len(values_n), len(sizes_g)
    if n == num_clusters:
        return 0.0
    between = float((sums_g**2 / sizes_g).sum() - n * values_n.mean() ** 2) / (num_clusters - 1)
    within = float((values_n**2).sum() - (sums_g**2 / sizes_g).sum()) / (n - num_clusters)
    size = (n - float((sizes_g**2).sum()) / n) / (num_clusters - 1)
    component = max(0.0, (between - within) / size)
    return component / (component + within) if component > 0 else 0.0


def _degrees_of_freedom(sizes_g: Floats, correlation: float) -> float:
    """(tr M)² / tr M² of the quadratic form behind the CR2 variance, tasks of a cluster equally correlated."""
    n = sizes_g.sum()
    scale_g = 1 / np.sqrt(1 - sizes_g / n)
    centred_gg = np.diag(sizes_g) - np.outer(sizes_g, sizes_g) / n
    factor_gg = scale_g[:, None] * centred_gg
    form_gg = (1 - correlation) * factor_gg * scale_g[None, :] + correlation * factor_gg @ factor_gg.T
    return float(np.trace(form_gg) ** 2 / (form_gg**2).sum())


def wild_cluster_p(
    values: Sequence[float], clusters: Sequence[str], null: float = 0.0, seed: int = 0, num_draws: int = 1999
) -> float:
    """One-sided p of mean > null by the wild cluster bootstrap-t: null imposed, Rademacher signs (Cameron 2008)."""
    values_n = np.asarray(values, dtype=float) - null
    sums_g, sizes_g = _cluster_sums(values_n, clusters)
    n = len(values_n)
    if len(sizes_g) < 2:
        return 1.0
    signs_bg = np.random.default_rng(seed).choice((-1.0, 1.0), size=(num_draws, len(sizes_g)))
    draws_bg = np.vstack([np.ones(len(sizes_g)), signs_bg]) * sums_g
    means_b = draws_bg.sum(axis=1) / n
    residuals_bg = (draws_bg - sizes_g * means_b[:, None]) / np.sqrt(1 - sizes_g / n)
    errors_b = np.sqrt((residuals_bg**2).sum(axis=1)) / n
    t_b = np.divide(means_b, errors_b, out=np.full_like(means_b, inf) * np.sign(means_b + 1e-300), where=errors_b > 0)
    return float((1 + (t_b[1:] >= t_b[0] - 1e-12).sum()) / (num_draws + 1))


def clustered_rate_difference(
    candidate: Sequence[float], incumbent: Sequence[float], clusters: Sequence[str], alpha: float
) -> Estimate:
    """Difference of two shares in [0, 1], paired by task.

    Below ten differing tasks the t bounds are too narrow (none at zero events), so they are widened to the exact
    bounds on the share of tasks that got worse and that got better, which the difference cannot exceed.
    """
    difference_n = np.asarray(candidate, dtype=float) - np.asarray(incumbent, dtype=float)
    result = clustered_mean(difference_n.tolist(), clusters, alpha)
    worse, better = int((difference_n > 0).sum()), int((difference_n < 0).sum())
    if worse + better >= 10 or result.num_tasks == 0:
        return result
    ceiling = clopper_pearson(worse, result.num_tasks, 1 - 2 * alpha).high
    floor = -clopper_pearson(better, result.num_tasks, 1 - 2 * alpha).high
    return _with_bounds(result, result.estimate, min(result.low, floor), max(result.high, ceiling))


def ratio_of_means(
    candidate: Sequence[float], incumbent: Sequence[float], clusters: Sequence[str], alpha: float
) -> Estimate:
    """mean(candidate) / mean(incumbent), paired by task; delta method on the logarithm with clustered errors."""
    mean_candidate, mean_incumbent = float(np.mean(candidate)), float(np.mean(incumbent))
    if mean_candidate <= 0 or mean_incumbent <= 0:
        raise ValueError("a ratio of means needs positive means")
    influence = np.asarray(candidate) / mean_candidate - np.asarray(incumbent) / mean_incumbent
    spread = clustered_mean(influence.tolist(), clusters, alpha)
    ratio = mean_candidate / mean_incumbent
    if spread.num_clusters < 2:
        return _with_bounds(spread, ratio, 0.0, inf)
    centre = log(ratio)
    return _with_bounds(spread, ratio, exp(centre + spread.low), exp(centre + spread.high))


def quantile_ratio(
    candidate: Sequence[Sequence[float]],
    incumbent: Sequence[Sequence[float]],
    clusters: Sequence[str],
    quantile: float,
    alpha: float,
    seed: int = 0,
    num_draws: int = 1000,
) -> Estimate:
    """Ratio of the pooled quantile of two arms. Element i of each arm holds task i's episodes.

    Percentile bootstrap over whole clusters, both arms of a cluster drawn together; `seed` fixes the draws.
    """
    _, index_n = np.unique(np.asarray(clusters, dtype=object).astype(str), return_inverse=True)
    num_clusters = int(index_n.max()) + 1 if len(index_n) else 0
    once = np.ones((1, num_clusters))
    base = float(_weighted_quantiles(candidate, index_n, once, quantile)[0])
    base /= float(_weighted_quantiles(incumbent, index_n, once, quantile)[0])
    shape = clustered_mean([0.0] * len(index_n), clusters, alpha)
    if num_clusters < 2:
        return _with_bounds(shape, base, 0.0, inf)
    generator = np.random.default_rng(seed)
    counts_bg = generator.multinomial(num_clusters, np.full(num_clusters, 1 / num_clusters), size=num_draws)
    draws_b = _weighted_quantiles(candidate, index_n, counts_bg, quantile)
    draws_b = draws_b / _weighted_quantiles(incumbent, index_n, counts_bg, quantile)
    low, high = np.quantile(draws_b, [alpha, 1 - alpha])
    return _with_bounds(shape, base, float(low), float(high), float(draws_b.std(ddof=1)))


def _weighted_quantiles(
    tasks: Sequence[Sequence[float]], index_n: NDArray[np.int64], counts_bg: NDArray[Any], quantile: float
) -> Floats:
    """Quantile (inverse of the empirical distribution) of all values for each draw of clusters."""
    values_m = np.concatenate([np.asarray(task, dtype=float) for task in tasks])
    cluster_m = np.repeat(index_n, [len(task) for task in tasks])
    order = np.argsort(values_m, kind="stable")
    values_m, cluster_m = values_m[order], cluster_m[order]
    found = []
    for chunk_bg in np.array_split(counts_bg, max(1, len(counts_bg) * len(values_m) // 2_000_000)):
        cumulative_bm = chunk_bg[:, cluster_m].cumsum(axis=1)
        reached_bm = cumulative_bm >= quantile * cumulative_bm[:, -1:]
        found.append(values_m[reached_bm.argmax(axis=1)])
    return np.maximum(np.concatenate(found), 1e-9)


def quantile_of(values: Sequence[float], quantile: float) -> float | None:
    """Quantile by linear interpolation; None of nothing."""
    return float(np.quantile(np.asarray(values, dtype=float), quantile)) if len(values) else None


def _with_bounds(shape: Estimate, estimate: float, low: float, high: float, error: float | None = None) -> Estimate:
    return Estimate(
        estimate,
        low,
        high,
        shape.standard_error if error is None else error,
        shape.degrees_of_freedom,
        shape.num_tasks,
        shape.num_clusters,
        shape.effective_clusters,
        shape.largest_cluster_share,
    )


def mcnemar_exact(num_better: int, num_worse: int, *, one_sided: bool = False) -> float:
    """Exact McNemar p on discordant pairs. One-sided: evidence that more got worse than better."""
    n = num_better + num_worse
    if n == 0:
        return 1.0
    if one_sided:
        return float(stats.binom.sf(num_worse - 1, n, 0.5))
    return min(1.0, 2 * float(stats.binom.cdf(min(num_better, num_worse), n, 0.5)))


def minimum_detectable_effect(standard_error: float, freedom: float, alpha: float, power: float = 0.8) -> float:
    """Smallest true difference that passes at alpha with the given power (Miller 2024, arXiv 2411.00640)."""
    if freedom <= 0:
        return inf
    return float(stats.t.ppf(1 - alpha, freedom) + stats.t.ppf(power, freedom)) * standard_error


def planned_standard_error(
    num_tasks: int, samples: int, discordance: float = 0.25, design_effect: float = 1.0
) -> float:
    """Standard error to expect of a paired difference before any data.

    discordance: share of attempts at one task in which the arms are expected to differ; half of its variance is
    taken as the tasks' own, which more samples do not remove.
    """
    return sqrt(design_effect * discordance * (0.5 + 0.5 / samples) / num_tasks)


def tasks_to_decide(estimate: float, bound_distance: float, limit: float, num_tasks: int) -> int | None:
    """How many more tasks would separate the estimate from the limit if nothing but n changes.

    bound_distance: from the estimate to the bound that has to clear the limit. None: the estimate sits on it.
    """
    gap = abs(estimate - limit)
    if gap < 1e-9 or not np.isfinite(bound_distance):
        return None
    return max(1, ceil(num_tasks * (bound_distance / gap) ** 2) - num_tasks)
