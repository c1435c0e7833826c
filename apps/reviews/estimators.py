"""Error rates of a verifier from labels sampled with known probabilities. Pure.

Within a stratum items were drawn with one probability and are offered in random order, so every labelled one stands
for N_h / n_h episodes; N_h is estimated by the sum of inverse inclusion probabilities (Hájek). This holds although
strata of suspicious episodes are drawn whole and offered first: how far each is labelled is in its own n_h. Intervals:
a Beta(½, ½) posterior of the share of truly passing episodes in each stratum, propagated by Monte Carlo.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_LABELS = 10  # under it nothing is measured; strata with fewer are merged
MAX_UNSEEN = 0.2  # of a verdict's episodes may lie in strata without any label: more, and nothing is measured
_DRAWS = 4000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sampled:
    """One review item. `truth` is the person's verdict; None: not labelled, or they could not tell."""

    stratum: str
    verifier_passed: bool
    inclusion_probability: float
    truth: bool | None


@dataclass(frozen=True)
class Rate:
    """A weighted share with its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class VerifierRates:
    """Rates of one verifier. None: not measured (too few labels, or nobody found the class the rate is of)."""

    num_labels: int
    false_positive: Rate | None  # verifier passes among what people fail
    false_negative: Rate | None  # verifier fails among what people pass
    disagreement: Rate | None


@dataclass(frozen=True)
class _Stratum:
    verifier_passed: bool
    weight: float  # estimated number of episodes
    true_share: float  # of the labelled ones, weighted
    num_effective: float  # labels, fewer where a merged stratum weights them unequally


def estimate_rates(items: Sequence[Sampled], seed: int = 0) -> VerifierRates:
    """Weighted rates over all strata; the seed fixes the draws of the intervals."""
    num_labels = sum(item.truth is not None for item in items)
    if num_labels < MIN_LABELS:
        return VerifierRates(num_labels, None, None, None)
    strata = _strata(items)
    if any(stratum.num_effective == 0 for stratum in strata):
        return VerifierRates(num_labels, None, None, None)  # nothing is known of one verdict of the verifier
    point = _rates(strata, np.array([[stratum.true_share for stratum in strata]]))
    generator = np.random.default_rng(seed)
    draws_bh = np.column_stack([_posterior(stratum, generator) for stratum in strata])
    spread = _rates(strata, draws_bh)
    return VerifierRates(num_labels, *(_rate(point[name], spread[name]) for name in ("fpr", "fnr", "disagreement")))


def _strata(items: Sequence[Sampled]) -> list[_Stratum]:
    """Strata with enough labels; the others of the same verifier verdict are merged, with the next one if need be."""
    groups: dict[tuple[bool, str], list[Sampled]] = defaultdict(list)
    for item in items:
        groups[item.verifier_passed, item.stratum].append(item)
    merged: dict[tuple[bool, str], list[Sampled]] = defaultdict(list)
    for (passed, name), members in groups.items():
        few = sum(item.truth is not None for item in members) < MIN_LABELS
        merged[passed, "" if few else name].extend(members)
    for passed in (False, True):
        rest = merged.get((passed, ""), [])
        others = [key for key in merged if key[0] is passed and key[1]]
        if rest and others and sum(item.truth is not None for item in rest) < MIN_LABELS:
            merged[min(others)].extend(merged.pop((passed, "")))
    return [_stratum(passed, members) for (passed, _), members in sorted(merged.items(), key=lambda pair: pair[0])]


def _stratum(passed: bool, members: list[Sampled]) -> _Stratum:
    """Strata that were merged keep their own weights; Kish's number of labels says what that costs."""
    size_h: dict[str, float] = defaultdict(float)
    labels_h: dict[str, int] = defaultdict(int)
    for item in members:
        size_h[item.stratum] += 1 / item.inclusion_probability
        labels_h[item.stratum] += item.truth is not None
    total = sum(size_h.values())
    labelled = [
        (size_h[item.stratum] / labels_h[item.stratum], item.truth) for item in members if item.truth is not None
    ]
    weight = sum(w for w, _ in labelled)  # of the strata with a label
    if weight < (1 - MAX_UNSEEN) * total:
        return _Stratum(passed, total, 0.0, 0.0)
    share = sum(w for w, truth in labelled if truth) / weight
    return _Stratum(passed, total, share, weight**2 / sum(w * w for w, _ in labelled))


def _posterior(stratum: _Stratum, generator: np.random.Generator) -> Floats:
    """Draws of the share of truly passing episodes, from Beta(½, ½) and the labels."""
    true = stratum.true_share * stratum.num_effective
    return generator.beta(true + 0.5, stratum.num_effective - true + 0.5, _DRAWS)


def _rates(strata: list[_Stratum], true_share_bh: Floats) -> dict[str, Floats]:
    """Rates for each row of shares of truly passing episodes."""
    weight_h = np.array([s.weight for s in strata])
    passed_h = np.array([s.verifier_passed for s in strata], dtype=float)
    passing_bh, failing_bh = weight_h * true_share_bh, weight_h * (1 - true_share_bh)
    false_positive_b = (failing_bh * passed_h).sum(axis=1)
    false_negative_b = (passing_bh * (1 - passed_h)).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "fpr": false_positive_b / failing_bh.sum(axis=1),
            "fnr": false_negative_b / passing_bh.sum(axis=1),
            "disagreement": (false_positive_b + false_negative_b) / weight_h.sum(),
        }


def _rate(point: Floats, draws: Floats) -> Rate | None:
    if not np.isfinite(point[0]):
        return None
    low, high = np.quantile(draws, [0.025, 0.975])
    return Rate(float(point[0]), min(float(low), float(point[0])), max(float(high), float(point[0])))
