"""Arms of one evaluation against one of them: paired by task, clustered, without any verdict (that is a gate's)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from apps.evaluations.models import Evaluation
from apps.evaluations.results import TaskOutcome, task_outcomes
from apps.evaluations.statistics import (
    Estimate,
    clustered_mean,
    mcnemar_exact,
    minimum_detectable_effect,
    wild_cluster_p,
)
from ratchet.problems import Problem

ALPHA = 0.05  # of the two-sided interval


@dataclass(frozen=True)
class Comparison:
    """`difference`: success of the arm minus success of the base, a task one unit, with its 95 % interval by CR2.

    `p_sign`: exact two-sided sign test over the tasks on which the two differ (McNemar's where there is one attempt).
    `p_bootstrap`: two-sided, wild cluster bootstrap. None: too few clusters. No correction for several arms.
    """

    label: str
    num_tasks: int
    num_unpaired: int
    num_better: int
    num_worse: int
    estimate: Estimate | None
    p_sign: float | None
    p_bootstrap: float | None

    @property
    def difference(self) -> float | None:
        return None if self.estimate is None else self.estimate.estimate

    @property
    def low(self) -> float | None:
        return None if self.estimate is None else _finite(self.estimate.low)

    @property
    def high(self) -> float | None:
        return None if self.estimate is None else _finite(self.estimate.high)

    @property
    def num_clusters(self) -> int:
        return 0 if self.estimate is None else self.estimate.num_clusters

    @property
    def trusted(self) -> bool:
        return self.estimate is not None and self.estimate.trusted

    @property
    def detectable(self) -> float | None:
        """Smallest true difference that such an evaluation finds four times in five."""
        if self.estimate is None:
            return None
        found = minimum_detectable_effect(
            self.estimate.standard_error, self.estimate.degrees_of_freedom, ALPHA / 2
        )  # fmt: skip
        return _finite(found)


def compare_arms(evaluation: Evaluation, base: str = "") -> tuple[str, list[Comparison]]:
    """The base's label (the first arm's where none is given) and every other arm against it. Problem 400."""
    labels = [arm.label for arm in evaluation.arms.all()]
    base = base or labels[0]
    if base not in labels:
        message = f"{base!r} is not one of {', '.join(labels)}"
        raise Problem("invalid", 400, f"base: {message}.", [{"path": "base", "message": message}])
    tasks, at = task_outcomes(evaluation), labels.index(base)
    return base, [_compare(label, tasks, at, arm) for arm, label in enumerate(labels) if arm != at]


def _compare(label: str, tasks: Sequence[TaskOutcome], base: int, arm: int) -> Comparison:
    pairs = [(task.success(base), task.success(arm), task.cluster) for task in tasks]
    known = [(after - before, cluster) for before, after, cluster in pairs if before is not None and after is not None]
    differences, clusters = [value for value, _ in known], [cluster for _, cluster in known]
    better, worse = sum(value > 0 for value in differences), sum(value < 0 for value in differences)
    estimate = clustered_mean(differences, clusters, ALPHA / 2) if known else None
    enough = estimate is not None and estimate.num_clusters > 1
    one_sided = (
        [wild_cluster_p(differences, clusters), wild_cluster_p([-value for value in differences], clusters)]
        if enough
        else []
    )
    return Comparison(
        label=label,
        num_tasks=len(known),
        num_unpaired=len(tasks) - len(known),
        num_better=better,
        num_worse=worse,
        estimate=estimate,
        p_sign=mcnemar_exact(better, worse) if known else None,
        p_bootstrap=min(1.0, 2 * min(one_sided)) if one_sided else None,
    )


def _finite(value: float) -> float | None:
    return value if -inf < value < inf else None
