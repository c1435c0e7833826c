"""Reads of evaluations: what a person may see, progress, results, the ledger of looks at held-out sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Q, QuerySet

from apps.accounts.models import User
from apps.accounts.permissions import Actor, Permission, has_permission, not_found, permitted_projects, require
from apps.evaluations.comparison import Comparison, compare_arms
from apps.evaluations.models import (
    Evaluation,
    EvaluationArm,
    EvaluationPurpose,
    EvaluationState,
    GatePolicy,
    HeldoutLook,
)
from apps.evaluations.results import ArmResult, TaskOutcome, arm_results, task_outcomes
from apps.evaluations.statistics import look_alpha, wilson
from apps.policies.models import Policy
from apps.runs.models import Episode, GroupState
from apps.runs.selectors import visible_episodes
from apps.tasks.models import SplitName, Suite
from apps.tasks.selectors import is_protected
from apps.tasks.services import note_heldout_look
from ratchet.problems import Problem

_EXPORTED = 200  # episodes read at once of an export
ROTATION_AFTER = 5  # promotions decided on one held-out set


@dataclass(frozen=True)
class EvaluationResults:
    """`tasks` is None where the reader may not see the content of the split's tasks."""

    evaluation: Evaluation
    arms: list[ArmResult]
    tasks: list[TaskOutcome] | None


@dataclass(frozen=True)
class HeldoutLedger:
    """Looks at one suite's held-out set and what of `alpha` they spent."""

    suite: Suite
    alpha: float
    looks: list[HeldoutLook]
    spent: float
    left: float
    next_alpha: float


def visible_evaluations(user: Actor) -> QuerySet[Evaluation]:
    """Evaluations of projects in which the user may read them, newest first, with counts of their groups."""
    projects = permitted_projects(user, Permission.EVALUATION_READ)
    evaluations = Evaluation.objects.filter(project__in=projects.values("pk"))
    return (
        evaluations.select_related("project", "suite", "run", "created_by", "install")
        .prefetch_related("arms__policy", "arms__checkpoint")
        .annotate(
            num_groups=Count("items"),
            num_closed=Count("items", filter=Q(items__group__state=GroupState.CLOSED)),
        )
        .order_by("-id")
    )


def find_evaluation(user: Actor, evaluation_id: UUID | str) -> Evaluation:
    """One evaluation the user may see. Raises Problem 404."""
    evaluation = visible_evaluations(user).filter(pk=evaluation_id).first()
    if evaluation is None:
        raise not_found()
    return evaluation


def may_read_tasks(user: Actor, evaluation: Evaluation) -> bool:
    """Whether answers task by task may be shown: held-out content needs a right of its own."""
    protected = is_protected(evaluation.split)
    permission = Permission.HELDOUT_READ if protected else Permission.EPISODE_READ
    return has_permission(user, permission, evaluation.project)


def evaluation_results(user: Actor, evaluation: Evaluation, *, with_tasks: bool = True) -> EvaluationResults:
    """What was measured so far, recomputed from stored episodes."""
    allowed = with_tasks and may_read_tasks(user, evaluation)
    return EvaluationResults(evaluation, arm_results(evaluation), task_outcomes(evaluation) if allowed else None)


def compare(evaluation: Evaluation, base: str = "") -> tuple[str, list[Comparison]]:
    """Arms against one of them. Not of a gate, which says more, and when: Problem 409."""
    if evaluation.purpose == EvaluationPurpose.GATE:
        raise Problem("evaluation_owned", 409, "The evaluation belongs to a gate: its report compares.")
    return compare_arms(evaluation, base)


def evaluation_episodes(user: User, evaluation: Evaluation) -> Iterator[Episode]:
    """The evaluation's episodes that the user may read; a look at held-out ones is written down. Problem 403."""
    require(user, Permission.EPISODE_READ, evaluation.project)
    if is_protected(evaluation.split):
        keys = evaluation.items.exclude(group=None).values_list("task__key", flat=True)
        note_heldout_look(suite=evaluation.suite, by=user, task_keys=sorted(set(keys)))
    rows = visible_episodes(user).filter(group__evaluation_item__evaluation=evaluation)
    return rows.order_by("group__evaluation_item__position", "index").iterator(chunk_size=_EXPORTED)


def visible_gate_policies(user: Actor) -> QuerySet[GatePolicy]:
    projects = permitted_projects(user, Permission.GATE_READ)
    return GatePolicy.objects.filter(project__in=projects.values("pk")).select_related("project").order_by("-id")


def heldout_ledger(suite: Suite, alpha: float = 0.05) -> HeldoutLedger:
    """The ledger of a suite's held-out set. Callers have checked that the reader may see the suite."""
    looks = list(
        HeldoutLook.objects.filter(suite=suite)
        .select_related("evaluation__created_by")
        .prefetch_related("evaluation__arms")
    )
    spent = sum(look.alpha for look in looks)
    return HeldoutLedger(suite, alpha, looks, spent, max(0.0, alpha - spent), look_alpha(alpha, len(looks) + 1))


def heldout_budgets(user: Actor) -> list[HeldoutLedger]:
    """Ledgers of the suites that were looked at, for the home page."""
    projects = permitted_projects(user, Permission.GATE_READ)
    suites = Suite.objects.filter(project__in=projects.values("pk"), looks__isnull=False).distinct()
    return [heldout_ledger(suite) for suite in suites.select_related("project").order_by("project__slug", "slug")]


@dataclass(frozen=True)
class Measured:
    """A policy's newest success on held-out tasks. `low` and `high`: 95 % Wilson on episodes."""

    evaluation: Evaluation
    success: float
    low: float
    high: float
    n: int


def measured_success(policy: Policy) -> Measured | None:
    """From the newest finished evaluation on held-out tasks; None: never measured. Callers have checked the right."""
    arms = EvaluationArm.objects.filter(
        policy=policy, evaluation__split=SplitName.HELDOUT, evaluation__state=EvaluationState.FINISHED
    )
    arm = arms.select_related("evaluation__suite").order_by("-evaluation__finished_at").first()
    if arm is None:
        return None
    scored = Episode.objects.filter(group__evaluation_item__arm=arm, reward__isnull=False)
    counts = scored.aggregate(n=Count("id"), passed=Count("id", filter=Q(success=True)))
    if not counts["n"]:
        return None
    interval = wilson(counts["passed"], counts["n"])
    return Measured(arm.evaluation, counts["passed"] / counts["n"], interval.low, interval.high, counts["n"])


def evaluations_of(user: Actor, policy: Policy) -> QuerySet[Evaluation]:
    """Evaluations with an arm of the policy, newest first."""
    return visible_evaluations(user).filter(pk__in=EvaluationArm.objects.filter(policy=policy).values("evaluation_id"))
