"""The words of a gate: rules fixed beforehand, one tile per metric, the report. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite


class Status(StrEnum):
    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True)
class MetricRule:
    """margin: greatest harm allowed, as a share, a ratio or turns. ceiling: greatest share of the candidate alone."""

    required: bool = False
    margin: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True)
class Rules:
    """`alpha` is what this look may spend, not the whole budget."""

    alpha: float
    min_effect: float = 0.0
    metrics: Mapping[str, MetricRule] = field(default_factory=dict)
    max_missing_share: float = 0.02
    seed: int = 0


@dataclass(frozen=True)
class Tile:
    """One metric. Values are in `unit`: pp (percentage points), × (ratio to the incumbent), turns, % or none."""

    name: str
    title: str
    unit: str
    verdict: Status
    required: bool
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None  # primary: what must be beaten; guardrails: what must not be passed
    n: int = 0  # tasks
    incumbent: float | None = None
    candidate: float | None = None
    more_tasks: int | None = None  # about so many more would decide
    words: str = ""


@dataclass(frozen=True)
class GateReport:
    verdict: Status
    headline: str
    lead: str
    tiles: list[Tile]
    alpha: float
    num_tasks: int
    num_clusters: int
    effective_clusters: float
    largest_cluster_share: float
    num_better: int
    num_worse: int
    mcnemar_p: float
    wild_bootstrap_p: float
    minimum_detectable_effect: float | None
    num_planned: int  # attempts an arm
    num_missing_incumbent: int
    num_missing_candidate: int
    worst_case_low: float | None  # lower bound of the gain, missing attempts against the candidate, pp
    blocks: list[str]  # why a verdict cannot be given, beyond single metrics


def finite(value: float) -> float | None:
    """None for what has no bound: JSON knows no infinity."""
    return value if isfinite(value) else None
