"""Writes of evaluations: start with a fixed plan, cancel, gate policies, looks at held-out sets."""

from collections.abc import Sequence
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import Max

from apps.accounts.models import Project, User
from apps.accounts.permissions import Permission, has_permission, require
from apps.audit.services import record
from apps.evaluations import messaging
from apps.evaluations.finishing import end_evaluation
from apps.evaluations.models import (
    Evaluation,
    EvaluationArm,
    EvaluationItem,
    EvaluationPurpose,
    EvaluationState,
    HeldoutLook,
)
from apps.evaluations.plans import ArmSpec, plan_hash
from apps.evaluations.states import FINAL_STATES
from apps.evaluations.statistics import look_alpha
from apps.policies.models import Policy, PolicyKind
from apps.runs.models import Run
from apps.runs.services import leases
from apps.tasks.models import SplitName, Suite, SuiteState, Task
from apps.tasks.selectors import ready_tasks
from gpu_workers.contracts.messages import Sampling
from ratchet.commits import after_commit
from ratchet.problems import Problem

MAX_SAMPLES = 64
MAX_TASKS = 1_000_000
GREEDY = Sampling(temperature=0.0)


@transaction.atomic
def start_evaluation(
    *,
    project: Project,
    suite: Suite,
    split: str,
    purpose: str,
    arms: Sequence[ArmSpec],
    samples: int = 1,
    sampling: Sampling = GREEDY,
    by: User | None,
    run: Run | None = None,
    max_tasks: int = 0,
    retry_of: Evaluation | None = None,
) -> Evaluation:
    """Fix the plan and queue it. Items are in order of task, then arm, so that all arms run interleaved.

    `max_tasks` 0: all ready tasks of the split, else the first so many of a fixed shuffle by task hash. With
    `retry_of` the tasks are those of that evaluation which are still ready.
    Raises Problem 400 or 409 naming what is wrong.
    """
    require(by, Permission.EVALUATION_CREATE, project)
    tasks = _choose_tasks(suite, split, max_tasks, retry_of)
    _check_plan(project, suite, split, arms, samples)
    _check_heldout(project, split, purpose, arms, by)
    digest = plan_hash(suite=suite, split=split, tasks=tasks, arms=arms, samples=samples, sampling=sampling)
    evaluation = Evaluation.objects.create(
        project=project,
        suite=suite,
        split=split,
        purpose=purpose,
        run=run,
        samples=samples,
        sampling=msgspec.to_builtins(sampling),
        plan_hash=digest,
        status_message="Waiting to be sent.",
        created_by=by,
    )
    _create_items(evaluation, arms, tasks)
    after: dict[str, Any] = {
        "purpose": purpose,
        "suite": str(suite),
        "split": split,
        "arms": [arm.label for arm in arms],
    }
    after |= {"num_tasks": len(tasks), "samples": samples, "plan_hash": digest}
    after |= {"retry_of": str(retry_of.pk)} if retry_of else {}
    tag = "user:evaluation:start" if by else "system:evaluation:start"
    record(tag=tag, by=by, project=project, subject=evaluation, after=after)
    after_commit(messaging.request_advance, evaluation.pk)
    return evaluation


def retry_evaluation(*, evaluation: Evaluation, by: User | None) -> Evaluation:
    """The same plan as a new evaluation; the old one stays as it is. While one like it is under way, that one is it."""
    require(by, Permission.EVALUATION_CREATE, evaluation.project)
    if evaluation.run_id or evaluation.purpose not in (EvaluationPurpose.BASELINE, EvaluationPurpose.DEV):
        owner = "its run" if evaluation.run_id else f"a {evaluation.get_purpose_display().lower()}"
        raise Problem("evaluation_owned", 409, f"The evaluation belongs to {owner}, which asks again by itself.")
    if evaluation.state not in FINAL_STATES:
        message = f"The evaluation is {evaluation.state}: cancel it or let it end before a retry."
        raise Problem("evaluation_not_final", 409, message)
    same = evaluation.project.evaluations.filter(plan_hash=evaluation.plan_hash, purpose=evaluation.purpose, run=None)
    under_way = same.exclude(state__in=FINAL_STATES).order_by("-id").first()
    if under_way is not None:
        return under_way
    arms = [
        ArmSpec(arm.label, arm.policy, arm.checkpoint, arm.num_shots)
        for arm in evaluation.arms.select_related("policy__base_model", "checkpoint__run__policy__base_model")
    ]
    return start_evaluation(
        project=evaluation.project,
        suite=evaluation.suite,
        split=evaluation.split,
        purpose=evaluation.purpose,
        arms=arms,
        samples=evaluation.samples,
        sampling=msgspec.convert(evaluation.sampling, Sampling),
        by=by,
        retry_of=evaluation,
    )


def _choose_tasks(suite: Suite, split: str, max_tasks: int, retry_of: Evaluation | None) -> list[Task]:
    ready = ready_tasks(suite, split)
    if retry_of is not None:
        ready = ready.filter(pk__in=retry_of.items.values("task"))
    tasks = list(ready)
    if not tasks:
        message = f"has no usable task in split {split!r}"
        raise Problem("no_tasks", 409, f"{suite} {message}.", [{"path": "split", "message": message}])
    if 0 < max_tasks < len(tasks):
        tasks = sorted(tasks, key=lambda task: task.task_hash)[:max_tasks]
    return sorted(tasks, key=lambda task: task.position)


def _check_plan(project: Project, suite: Suite, split: str, arms: Sequence[ArmSpec], samples: int) -> None:
    if suite.project_id != project.pk or suite.state != SuiteState.READY:
        raise _invalid("suite", f"{suite} is not a ready suite of project {project.slug}")
    if split not in SplitName.values:
        raise _invalid("split", f"{split!r} is not one of {', '.join(SplitName.values)}")
    if not 1 <= samples <= MAX_SAMPLES:
        raise _invalid("samples", f"must be between 1 and {MAX_SAMPLES}")
    if not arms:
        raise _invalid("policies", "at least one policy is needed")
    if len({arm.label for arm in arms}) < len(arms):
        raise _invalid("policies", "the same arm is named twice")
    if len({arm.base_model.pk for arm in arms}) > 1:
        slugs = ", ".join(sorted({arm.base_model.slug for arm in arms}))
        raise _invalid("policies", f"have different base models ({slugs}): engines serve one at a time")
    for arm in arms:
        owner = arm.policy.project_id if arm.policy else arm.checkpoint and arm.checkpoint.run.project_id
        if owner != project.pk:
            raise _invalid("policies", f"{arm.label} belongs to another project")
        if arm.whole_weights and not leases.has_fleet():
            raise _invalid("policies", f"{arm.label} has whole weights, but {leases.NO_FLEET}")


def _check_heldout(project: Project, split: str, purpose: str, arms: Sequence[ArmSpec], by: User | None) -> None:
    """Candidates meet held-out tasks in a gate, where the look is counted; else they would be chosen by it."""
    if split != SplitName.HELDOUT or purpose == EvaluationPurpose.GATE:
        return
    trained = [arm.label for arm in arms if arm.policy is None or arm.policy.kind == PolicyKind.REINFORCED]
    if trained and not has_permission(by, Permission.HELDOUT_READ, project):
        raise Problem(
            "heldout_by_gate_only",
            403,
            f"{', '.join(trained)} may be a candidate: open a gate (it can carry baselines) or evaluate on split dev.",
            [{"path": "split", "message": "held-out is for gates, prompt-only and supervised baselines"}],
        )


def _create_items(evaluation: Evaluation, arms: Sequence[ArmSpec], tasks: Sequence[Task]) -> None:
    rows = EvaluationArm.objects.bulk_create(
        [
            EvaluationArm(
                evaluation=evaluation,
                position=position,
                label=arm.label,
                policy=arm.policy,
                checkpoint=arm.checkpoint,
                num_shots=arm.shots,
            )
            for position, arm in enumerate(arms)
        ]
    )
    items = [
        EvaluationItem(
            evaluation=evaluation, arm=arm, task=task, position=number * len(rows) + (offset + number) % len(rows)
        )
        for number, task in enumerate(tasks)
        for offset, arm in enumerate(rows)
    ]
    EvaluationItem.objects.bulk_create(items, batch_size=1000)


@transaction.atomic
def cancel_evaluation(*, evaluation: Evaluation, by: User | None, reason: str = "") -> Evaluation:
    """Stop an evaluation; what was scored stays. Repeating it changes nothing. Raises Problem 409 when it is over."""
    require(by, Permission.EVALUATION_CREATE, evaluation.project)
    evaluation = Evaluation.objects.select_for_update(of=("self",)).select_related("project").get(pk=evaluation.pk)
    if evaluation.state == EvaluationState.CANCELLED:
        return evaluation
    if evaluation.state in FINAL_STATES:
        raise Problem("evaluation_over", 409, f"The evaluation is {evaluation.state} already.")
    who = by.get_username() if by else "the platform"
    end_evaluation(evaluation, EvaluationState.CANCELLED, f"Cancelled by {who}{': ' + reason if reason else ''}.")
    tag = "user:evaluation:cancel" if by else "system:evaluation:cancel"
    record(tag=tag, by=by, project=evaluation.project, subject=evaluation, reason=reason)
    return evaluation


@transaction.atomic
def spend_look(*, evaluation: Evaluation, alpha: float, by: User | None) -> HeldoutLook:
    """Spend the next share of alpha on this look at the suite's held-out set, before anything is seen."""
    Suite.objects.select_for_update(no_key=True).get(pk=evaluation.suite_id)  # looks are numbered one at a time
    newest = HeldoutLook.objects.filter(suite=evaluation.suite).aggregate(newest=Max("number"))["newest"] or 0
    look = HeldoutLook.objects.create(
        suite=evaluation.suite, number=newest + 1, alpha=look_alpha(alpha, newest + 1), evaluation=evaluation
    )
    after = {"look": look.number, "alpha": look.alpha, "suite": str(evaluation.suite)}
    tag = "user:heldout:look" if by else "system:heldout:look"
    record(tag=tag, by=by, project=evaluation.project, subject=evaluation, after=after)
    return look


def policy_arm(policy: Policy, label: str = "") -> ArmSpec:
    return ArmSpec(label=label or policy.slug, policy=policy)


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid", 400, f"{path}: {message}.", [{"path": path, "message": message}])
