"""Collects a gate's evidence from stored episodes, and its digest. Reported numbers play no part."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from apps.evaluations.models import EvaluationArm
from apps.evaluations.results import scored_episodes
from apps.promotions.evidence import Attempt, Evidence, VerifierQuality
from apps.promotions.models import Gate
from apps.promotions.report import MetricRule, Rules
from apps.reviews.selectors import verifier_rates
from apps.runs.models import Episode
from apps.tasks.models import Suite

_DIGESTED = (
    "id", "group_id", "index", "seed", "verdict", "success", "reward", "reason_code", "tamper", "num_invalid_calls",
    "num_turns", "num_tool_calls", "num_total_tokens", "num_sampled_tokens", "total_seconds",
)  # fmt: skip


def collect(gate: Gate) -> Evidence:
    """Attempts of incumbent and candidate; an episode without a verdict is missing."""
    evaluation = gate.evaluation
    incumbent, candidate = (gate_arms(gate)[name] for name in ("incumbent", "candidate"))
    items = incumbent.items.select_related("task").order_by("task__position")
    return Evidence(
        tasks={str(item.task_id): item.task.cluster or item.task.key for item in items},
        samples=evaluation.samples,
        incumbent=_attempts(incumbent),
        candidate=_attempts(candidate),
        verifier=_verifier_quality(evaluation.suite),
    )


def _verifier_quality(suite: Suite) -> VerifierQuality | None:
    rates = verifier_rates(suite)
    if rates.disagreement is None:
        return None
    rate = rates.disagreement
    return VerifierQuality(rates.num_labels, rate.estimate, rate.low, rate.high)


def gate_arms(gate: Gate) -> dict[str, EvaluationArm]:
    """The arms that the verdict is about."""
    arms = list(gate.evaluation.arms.select_related("policy"))
    return {"incumbent": arms[0], "candidate": arms[1]}


def _attempts(arm: EvaluationArm) -> tuple[Attempt, ...]:
    tasks = dict(arm.items.exclude(group=None).values_list("group_id", "task_id"))
    return tuple(_attempt(episode, str(tasks[episode.group_id])) for episode in scored_episodes(arm))


def _attempt(episode: Episode, task: str) -> Attempt:
    return Attempt(
        task=task,
        success=episode.success,
        invalid_call=episode.num_invalid_calls > 0,
        tamper=episode.tamper,
        seconds=episode.total_seconds,
        tokens=episode.num_total_tokens,
        turns=episode.num_turns,
    )


def evidence_digest(gate: Gate) -> str:
    """SHA-256 over every episode of the gate's evaluation, with what it scored and cost, and over the plan."""
    rows = Episode.objects.filter(group__evaluation_item__evaluation=gate.evaluation_id)
    return digest_rows(gate.evaluation.plan_hash, rows.order_by("id").values(*_DIGESTED).iterator(chunk_size=2000))


def digest_rows(plan_hash: str, rows: Iterable[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256(plan_hash.encode())
    for row in rows:
        digest.update(json.dumps([str(row[name]) for name in _DIGESTED]).encode())
    return digest.hexdigest()


def rules_of(gate: Gate) -> Rules:
    """The gate policy at the alpha of this look; the plan's hash seeds the bootstraps."""
    policy = gate.gate_policy
    return Rules(
        alpha=gate.evaluation.look.alpha,
        min_effect=policy.min_effect,
        metrics={name: MetricRule(**rule) for name, rule in policy.metrics.items()},
        max_missing_share=policy.max_missing_share,
        seed=int(gate.evaluation.plan_hash[:8], 16),
    )
