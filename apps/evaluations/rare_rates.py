"""Interval of a rate, also a rare one, over episodes that come in clusters. Pure."""

from collections.abc import Sequence

from scipy import stats

from apps.evaluations.statistics import Interval


def clustered_rate(hits: Sequence[int], sizes: Sequence[int], confidence: float = 0.95) -> Interval:
    """Clopper–Pearson on the effective number of observations (Korn & Graubard 1998); one entry a cluster.

    The effective number is p(1 − p) over the between-cluster variance of the ratio Σhits/Σsizes, at most all of them.
    With no hit, or nothing else, that variance says nothing: every cluster then counts as one observation.
    """
    kept = [(x, n) for x, n in zip(hits, sizes, strict=True) if n]
    num_clusters, num_hits, num_all = len(kept), sum(x for x, _ in kept), sum(n for _, n in kept)
    if any(not 0 <= x <= n for x, n in kept):
        raise ValueError("a cluster has more hits than observations")
    if num_clusters < 2:
        return Interval(0.0, 1.0)
    rate = num_hits / num_all
    squares = sum((x - rate * n) ** 2 for x, n in kept)
    variance = num_clusters / (num_clusters - 1) * squares / num_all**2
    if num_hits in (0, num_all):
        effective = float(num_clusters)
    else:
        effective = min(float(num_all), rate * (1 - rate) / variance) if variance else float(num_all)
        tail = (1 - confidence) / 2
        # Few clusters say little about the variance itself.
        effective *= float((stats.t.ppf(tail, num_all - 1) / stats.t.ppf(tail, num_clusters - 1)) ** 2)
    return _beta_interval(rate, effective, confidence)


def _beta_interval(rate: float, n: float, confidence: float) -> Interval:
    tail, x = (1 - confidence) / 2, rate * n
    low = 0.0 if rate == 0 else float(stats.beta.ppf(tail, x, n - x + 1))
    high = 1.0 if rate == 1 else float(stats.beta.ppf(1 - tail, x + 1, n - x))
    return Interval(low, high)
