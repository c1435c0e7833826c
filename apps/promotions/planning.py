"""What a gate could show before it is opened: alpha of the next look, detectable effect, guardrails out of reach."""

from collections import Counter
from dataclasses import dataclass
from math import ceil, log

from apps.evaluations.models import GatePolicy
from apps.evaluations.selectors import heldout_ledger
from apps.evaluations.statistics import MAX_CLUSTER_SHARE, minimum_detectable_effect, planned_standard_error
from apps.promotions.guardrails import GUARDRAILS
from apps.tasks.models import SplitName, Suite
from apps.tasks.selectors import ready_tasks


@dataclass(frozen=True)
class GatePlan:
    """`detectable_effect` in percentage points, at power .8, if the arms differ on a quarter of the attempts."""

    num_tasks: int
    num_clusters: int
    effective_clusters: float
    largest_cluster_share: float
    look: int
    alpha: float
    detectable_effect: float | None
    warnings: list[str]


def plan_gate(suite: Suite, gate_policy: GatePolicy, samples: int = 1) -> GatePlan:
    """Judge the design, not the policies: nothing is run and no look is spent."""
    clusters = Counter(task.cluster or task.key for task in ready_tasks(suite, SplitName.HELDOUT))
    n = clusters.total()
    ledger = heldout_ledger(suite, gate_policy.alpha)
    if n == 0:
        return GatePlan(
            0, 0, 0.0, 0.0, len(ledger.looks) + 1, ledger.next_alpha, None, [f"{suite} has no held-out tasks"]
        )
    effective = n * n / sum(size * size for size in clusters.values())
    largest = max(clusters.values()) / n
    error = planned_standard_error(n, samples)
    effect = 100 * minimum_detectable_effect(error, effective - 1, ledger.next_alpha) if effective > 1 else None
    return GatePlan(
        num_tasks=n,
        num_clusters=len(clusters),
        effective_clusters=effective,
        largest_cluster_share=largest,
        look=len(ledger.looks) + 1,
        alpha=ledger.next_alpha,
        detectable_effect=effect,
        warnings=[*_cluster_warnings(largest), *_out_of_reach(gate_policy, n, ledger.next_alpha)],
    )


def _cluster_warnings(largest: float) -> list[str]:
    if largest <= MAX_CLUSTER_SHARE:
        return []
    return [f"one cluster holds {100 * largest:.0f} % of the tasks: above a third the gate gives no verdict"]


def _out_of_reach(gate_policy: GatePolicy, num_tasks: int, alpha: float) -> list[str]:
    """Required rates that even tasks without a single event could not show to be within their margin."""
    found = []
    for name, rule in gate_policy.metrics.items():
        guardrail = GUARDRAILS[name]
        if not rule.get("required"):
            continue
        if guardrail.kind == "none" and name != "verifier":
            found.append(f"{guardrail.title.lower()} is required but is not measured here")
        margin = rule.get("margin", guardrail.default_margin)
        if guardrail.kind != "rate" or not 0 < margin < 1:
            continue
        needed = ceil(log(alpha) / log(1 - margin))
        if needed > num_tasks:
            found.append(
                f"{guardrail.title.lower()}: a margin of {100 * margin:g} points needs {needed} tasks without an "
                f"event, there are {num_tasks}"
            )
    return found
