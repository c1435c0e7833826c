"""The report of a gate as its page and print view show it: JSON, recomputed from stored episodes alone."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from apps.evaluations.results import ArmResult, EpisodeOutcome, TaskOutcome, arm_results, task_outcomes
from apps.evaluations.statistics import clustered_mean
from apps.metrics.reading import reported_value
from apps.promotions.models import Gate
from apps.promotions.report import GateReport
from apps.runs.models import Batch, Checkpoint, Run
from gpu_workers.contracts.runspec import parse_run_spec

_ROLES = ("incumbent", "candidate")
_BASELINE_ALPHA = 0.025  # 95 % two-sided; not gating


def build_report(gate: Gate, judged: GateReport) -> dict[str, Any]:
    """Everything the page shows, as plain JSON."""
    arms, tasks = arm_results(gate.evaluation), task_outcomes(gate.evaluation)
    summary = {name: value for name, value in asdict(judged).items() if name != "tiles"}
    return {
        **summary,
        "tiles": [{**asdict(tile), "verdict": str(tile.verdict)} for tile in judged.tiles],
        "verdict": str(judged.verdict),
        "plan": _plan(gate),
        "arms": [_arm(arm, number) for number, arm in enumerate(arms)],
        "comparisons": [_comparison(arms, tasks, number) for number in range(2, len(arms))],
        "tasks": _task_by_task(tasks),
        "reported": _reported(gate, arms[1]),
    }


def _plan(gate: Gate) -> dict[str, Any]:
    evaluation, policy = gate.evaluation, gate.gate_policy
    return {
        "suite": str(evaluation.suite),
        "suite_id": str(evaluation.suite_id),
        "split": evaluation.split,
        "content_hash": evaluation.suite.content_hash,
        "plan_hash": evaluation.plan_hash,
        "samples": evaluation.samples,
        "sampling": evaluation.sampling,
        "gate_policy": str(policy),
        "alpha_budget": policy.alpha,
        "min_effect": policy.min_effect,
        "max_missing_share": policy.max_missing_share,
        "look": evaluation.look.number,
    }


def _arm(arm: ArmResult, number: int) -> dict[str, Any]:
    data = asdict(arm)
    data.pop("clusters")
    data["policy_id"] = str(arm.policy_id) if arm.policy_id else None
    return {**data, "num_missing": arm.num_missing, "role": _ROLES[number] if number < 2 else "baseline"}


def _comparison(arms: Sequence[ArmResult], tasks: Sequence[TaskOutcome], number: int) -> dict[str, Any]:
    """Candidate against a baseline on the same tasks, in points, with a 95 % interval. It gates nothing."""
    pairs = [(t.success(1), t.success(number), t.cluster) for t in tasks]
    differences = [(a - b, cluster) for a, b, cluster in pairs if a is not None and b is not None]
    data = {"label": arms[number].label, "kind": arms[number].kind, "n": len(differences)}
    if not differences:
        return {**data, "estimate": None, "low": None, "high": None, "words": "no task was scored in both"}
    result = clustered_mean([d for d, _ in differences], [c for _, c in differences], _BASELINE_ALPHA)
    words = "not yet clear"
    if result.low > 0 or result.high < 0:
        words = "clearly better" if result.low > 0 else "clearly worse"
    bounds = {"low": _points(result.low), "high": _points(result.high)}
    return {**data, "estimate": _points(result.estimate), **bounds, "words": words}


def _points(value: float) -> float | None:
    return 100 * value if isfinite(value) else None


def _task_by_task(tasks: Sequence[TaskOutcome]) -> dict[str, Any]:
    """Tasks that got better and worse between incumbent and candidate, worst change first, with what was answered."""
    changes = []
    for task in tasks:
        before, after = task.success(0), task.success(1)
        if before is not None and after is not None and before != after:
            changes.append((after - before, task))
    changes.sort(key=lambda change: (change[0], change[1].key))
    rows = [(change, _task_row(task, change)) for change, task in changes]
    return {
        "better": [row for change, row in reversed(rows) if change > 0],
        "worse": [row for change, row in rows if change < 0],
        "num_unchanged": sum(task.success(0) == task.success(1) is not None for task in tasks),
    }


def _task_row(task: TaskOutcome, change: float) -> dict[str, Any]:
    return {
        "task_id": str(task.task_id),
        "key": task.key,
        "cluster": task.cluster,
        "tags": task.tags,
        "change": change,
        "incumbent": _telling(task.arms[0]),
        "candidate": _telling(task.arms[1]),
    }


def _telling(outcomes: list[EpisodeOutcome]) -> dict[str, Any]:
    """The arm's first failure, or its first episode."""
    chosen = next((outcome for outcome in outcomes if not outcome.success), outcomes[0])
    return {
        "success": sum(outcome.success for outcome in outcomes) / len(outcomes),
        "answer": chosen.answer,
        "reason_code": chosen.reason_code,
        "episode_id": str(chosen.episode_id),
        "episode_ids": [str(outcome.episode_id) for outcome in outcomes],
    }


def _reported(gate: Gate, candidate: ArmResult) -> list[dict[str, Any]]:
    """What the run said of itself beside what stored episodes show. `unit`: share or CPU-s; None: no such number."""
    rows = [_row("Held-out success", "share", None, candidate.success, candidate.n, "runs never see held-out tasks")]
    run = gate.run
    version = gate.candidate.run_version
    if run is None or version is None:
        return rows
    checkpoint = run.checkpoints.filter(version=version).first()
    if checkpoint is None:
        return rows
    temperature = parse_run_spec(run.spec).evaluation.temperature
    note = f"{f'sampled at temperature {temperature:g}' if temperature else 'greedy'}, on the dev split"
    rows.append(
        _row(
            f"Dev success, step {checkpoint.version}",
            "share",
            None,
            checkpoint.dev_success,
            checkpoint.dev_n or 0,
            note,
        )
    )
    rows.append(_reward_row(run, checkpoint))
    note = "spent by the trainer, as its processes report it"
    rows.append(_row("Training compute", "CPU-s", checkpoint.train_cpu_seconds, None, 1, note))
    return rows


def _reward_row(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """Mean reward of the batch behind the checkpoint's step: the trainer's number and the stored episodes' one."""
    name = f"Mean train reward, step {checkpoint.version}"
    batch = Batch.objects.filter(run=run, index=checkpoint.version - 1, state="trained").first()
    groups = list(batch.groups.all()) if batch else []
    n = sum(group.num_scored for group in groups)
    measured = sum((group.reward_mean or 0.0) * group.num_scored for group in groups) / n if n else None
    reported = reported_value(run, "train/reward_mean", checkpoint.version)
    return _row(name, "reward", reported, measured, n, "")


def _row(quantity: str, unit: str, reported: float | None, measured: float | None, n: int, note: str) -> dict[str, Any]:
    return {"quantity": quantity, "unit": unit, "reported": reported, "measured": measured, "n": n, "note": note}
