"""The regression replay after a promotion, and the rollback that follows when it shows harm."""

from typing import Any

from django.db import transaction

from apps.audit.services import record
from apps.evaluations.models import EvaluationPurpose, EvaluationState
from apps.evaluations.results import TaskOutcome, task_outcomes
from apps.evaluations.services import policy_arm, start_evaluation
from apps.evaluations.states import FINAL_STATES
from apps.evaluations.statistics import mcnemar_exact
from apps.policies.services import rollback_channel
from apps.promotions.models import Gate
from apps.tasks.models import SplitName
from apps.tasks.selectors import ready_tasks
from gpu_workers.contracts.messages import Sampling

ROLLBACK_BELOW_P = 0.05  # one-sided exact McNemar: more tasks broke than were mended

RUNNING, PASSED, FAILED, NOT_MEASURED = "running", "passed", "failed", "not_measured"


def start_regression(gate: Gate) -> None:
    """Replay the fixed regression tasks with the previous policy and the new one. The gate is locked."""
    suite = gate.evaluation.suite
    if not ready_tasks(suite, SplitName.REGRESSION).exists():
        gate.regression_result = {"status": NOT_MEASURED, "words": f"{suite} has no regression tasks."}
        gate.save(update_fields=["regression_result"])
        return
    tokens = gate.evaluation.sampling.get("max_new_tokens", Sampling().max_new_tokens)
    gate.regression = start_evaluation(
        project=gate.project,
        suite=suite,
        split=SplitName.REGRESSION,
        purpose=EvaluationPurpose.REGRESSION,
        arms=[policy_arm(gate.incumbent), policy_arm(gate.candidate)],
        samples=1,
        sampling=Sampling(max_new_tokens=tokens, temperature=0.0),
        by=None,
    )
    gate.regression_result = {"status": RUNNING, "words": "The regression set is being replayed."}
    gate.save(update_fields=["regression", "regression_result"])


@transaction.atomic
def conclude_regression(gate: Gate) -> Gate:
    """Judge a finished replay; roll the channel back when more tasks broke than chance explains."""
    rows = Gate.objects.select_for_update(of=("self",)).select_related(
        "project", "channel__project", "candidate", "incumbent", "regression"
    )
    gate = rows.get(pk=gate.pk)
    replay = gate.regression
    if replay is None or gate.regression_result.get("status") != RUNNING or replay.state not in FINAL_STATES:
        return gate
    if replay.state != EvaluationState.FINISHED:
        words = f"The replay was {replay.state}: {replay.status_message}"
        gate.regression_result = {"status": NOT_MEASURED, "words": words}
    else:
        gate.regression_result = _judge(task_outcomes(replay))
    rolled_back = False
    if gate.regression_result["status"] == FAILED:
        rolled_back = _roll_back(gate)
    gate.regression_result["rolled_back"] = rolled_back
    gate.save(update_fields=["regression_result"])
    after = {name: value for name, value in gate.regression_result.items() if name != "tasks"}
    record(tag="system:gate:regression", by=None, project=gate.project, subject=gate, after=after)
    return gate


def _judge(tasks: list[TaskOutcome]) -> dict[str, Any]:
    both = [(task, task.success(0), task.success(1)) for task in tasks]
    pairs = [(task, before, after) for task, before, after in both if before is not None and after is not None]
    worse = [task for task, before, after in pairs if before > after]
    num_better = sum(after > before for _, before, after in pairs)
    p = mcnemar_exact(num_better, len(worse), one_sided=True)
    status = FAILED if p < ROLLBACK_BELOW_P else PASSED
    words = f"{len(worse)} of {len(pairs)} tasks broke, {num_better} were mended (one-sided exact McNemar p = {p:.3f})."
    return {
        "status": status,
        "words": words,
        "num_tasks": len(pairs),
        "num_missing": len(tasks) - len(pairs),
        "num_better": num_better,
        "num_worse": len(worse),
        "p": p,
        "tasks": [{"key": task.key, "task_id": str(task.task_id)} for task in worse],
    }


def _roll_back(gate: Gate) -> bool:
    """Put the previous policy back unless the channel has moved on."""
    gate.channel.refresh_from_db()
    if gate.channel.policy_id != gate.candidate_id:
        gate.regression_result["words"] += f" {gate.channel} has moved on since, so nothing was rolled back."
        return False
    words = gate.regression_result["words"]
    rollback_channel(channel=gate.channel, by=None, reason=f"Regression replay of gate {gate.number}: {words}")
    gate.regression_result["words"] += f" {gate.channel} was rolled back to {gate.incumbent}."
    return True
