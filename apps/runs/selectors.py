"""Reads of runs: who may see which, ledgers, events, groups and episodes."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Max, Q, QuerySet, Sum

from apps.accounts.permissions import Actor, Permission, has_permission, not_found, permitted_projects
from apps.runs.models import Checkpoint, Episode, Group, InstallState, Outcome, Run, RunEvent
from apps.runs.scheduling.ledger import Ledger, build_ledger
from apps.runs.scheduling.longtail import GroupCost, LongTail, account
from apps.tasks.models import Task
from apps.tasks.selectors import OPEN_SPLITS, is_protected
from ratchet.problems import Problem


def visible_runs(user: Actor) -> QuerySet[Run]:
    """Runs of the projects in which the user may read runs, newest first."""
    projects = permitted_projects(user, Permission.RUN_READ)
    runs = Run.objects.filter(project__in=projects.values("pk"))
    return runs.select_related("project", "suite", "policy__base_model", "result", "created_by").order_by("-id")


def find_run(user: Actor, run_id: UUID | str) -> Run:
    """One run the user may see. Raises Problem 404."""
    run = visible_runs(user).filter(pk=run_id).first()
    if run is None:
        raise not_found()
    return run


def may_see_run(user: Actor, run_id: UUID | str) -> bool:
    """Whether `find_run` would find it, without reading it."""
    return visible_runs(user).filter(pk=run_id).exists()


def ledger(run: Run) -> Ledger:
    """Counts of the run's groups by state and outcome, in one statement."""
    rows = run.groups.values_list("state", "outcome").annotate(count=Count("id"), last=Max("number")).order_by()
    counts = {(state, outcome): count for state, outcome, count, _ in rows}
    return build_ledger(max((last for *_, last in rows), default=0), counts)


@dataclass(frozen=True)
class TaskDrops:
    """Groups of one task that went stale: the bound must not starve slow tasks unseen."""

    task_id: UUID
    key: str
    num_stale: int
    num_trained: int


def stale_tasks(run: Run, limit: int = 20) -> list[TaskDrops]:
    """Tasks whose groups went stale, most drops first."""
    stale = run.groups.filter(outcome=Outcome.STALE).values("task_id").annotate(count=Count("id")).order_by("-count")
    counts = {row["task_id"]: row["count"] for row in stale[:limit]}
    trained = run.groups.filter(outcome=Outcome.TRAINED, task_id__in=counts).values("task_id").annotate(n=Count("id"))
    num_trained = {row["task_id"]: row["n"] for row in trained.order_by()}
    keys = task_keys(counts)
    return [TaskDrops(key, keys[key], count, num_trained.get(key, 0)) for key, count in counts.items()]


def long_tail(run: Run) -> LongTail[UUID]:
    """What the run's episodes cost in episode-seconds: the slowest groups, retries, cancelled ones; by task."""
    costs = run.groups.order_by().annotate(
        seconds=Sum("episodes__total_seconds", default=0.0), passed=Count("episodes", filter=Q(episodes__success=True))
    )
    rows = costs.values_list(
        "task_id", "size", "retry_seconds", "cancelled_seconds", "dispatch", "straggler", "propensity", "straggler_at",
        "finished_at", "seconds", "passed",
    )  # fmt: skip
    return account(
        GroupCost(
            task=task,
            seconds=seconds,
            retry_seconds=retried,
            cancelled_seconds=cancelled,
            num_retries=max(0, dispatch - 1),
            arm=arm,
            propensity=propensity,
            recovery_seconds=size * (end - at).total_seconds() if seconds and end and at and end > at else 0.0,
            num_passed=passed,
        )
        for task, size, retried, cancelled, dispatch, arm, propensity, at, end, seconds, passed in rows
    )


def task_keys(tasks: Iterable[UUID]) -> dict[UUID, str]:
    """Keys of tasks by their ids."""
    return dict(Task.objects.filter(pk__in=list(tasks)).values_list("id", "key"))


def events_since(run: Run, cursor: int = 0, limit: int = 200) -> list[RunEvent]:
    """Events after `cursor`, oldest first; of a fresh look (cursor 0) the newest `limit`."""
    if cursor:
        return list(run.events.filter(id__gt=cursor).order_by("id")[:limit])
    return list(run.events.order_by("-id")[:limit])[::-1]


def checkpoints_of(run: Run) -> QuerySet[Checkpoint]:
    return run.checkpoints.order_by("version")


def what_is_trained(run: Run) -> str:
    """The trained part of the weights and how it reaches the engines, in a few words."""
    if not run.whole_weights:
        return f"LoRA rank {run.spec['lora']['rank']}"
    installed = run.installs.filter(state=InstallState.CONFIRMED).order_by("-created_at").first()
    return f"every weight, by {installed.transfer if installed else run.spec['trainer']['transfer']}"


def fleet_words(run: Run) -> str:
    """Where a run stands with the engines of full runs; empty of one that has not asked for them."""
    lease = run.leases.order_by("-id").first()
    if lease is None:
        return ""
    if lease.released_at is not None:
        return "gave the engines of full runs back"
    return "holds the engines of full runs" if lease.granted_at else "waits for the engines of full runs"


def visible_groups(user: Actor) -> QuerySet[Group]:
    """Groups, of runs and of evaluations, of projects in which the user may read episodes."""
    projects = permitted_projects(user, Permission.EPISODE_READ)
    groups = Group.objects.filter(project__in=projects.values("pk"))
    return groups.select_related("project", "run", "task__suite", "batch").order_by("-id")


def find_group(user: Actor, group_id: UUID | str) -> Group:
    """One group with content the user may read. Problem 404, or 403 where it is on a held-out task."""
    group = visible_groups(user).filter(pk=group_id).first()
    if group is None:
        raise not_found()
    _require_content(user, group)
    return group


def visible_episodes(user: Actor) -> QuerySet[Episode]:
    """Episodes the user may read: those of held-out tasks only with the right to held-out content."""
    projects = permitted_projects(user, Permission.EPISODE_READ)
    heldout = permitted_projects(user, Permission.HELDOUT_READ)
    # By the row's own group and task: a list of all hidden groups would be made anew for each page.
    readable = Q(group__task__split__in=OPEN_SPLITS) | Q(group__project__in=heldout.values("pk"))
    episodes = Episode.objects.filter(readable, group__project__in=projects.values("pk"))
    return episodes.select_related("group__project", "group__run", "group__task__suite", "group__batch").order_by("-id")


def find_episode(user: Actor, episode_id: UUID | str) -> Episode:
    """One episode the user may read. Problem 404, or 403 where it is on a held-out task."""
    projects = permitted_projects(user, Permission.EPISODE_READ)
    rows = Episode.objects.filter(pk=episode_id, group__project__in=projects.values("pk"))
    episode = rows.select_related("group__project", "group__run", "group__task__suite", "group__batch").first()
    if episode is None:
        raise not_found()
    _require_content(user, episode.group)
    return episode


def is_heldout(group: Group) -> bool:
    return is_protected(group.task.split)


def _require_content(user: Actor, group: Group) -> None:
    if is_heldout(group) and not has_permission(user, Permission.HELDOUT_READ, group.project):
        raise Problem(
            "heldout_forbidden",
            403,
            f"This is on a held-out task; reading it needs the right {Permission.HELDOUT_READ}.",
        )


def run_episodes(run: Run) -> QuerySet[Episode]:
    """Episodes that a run generated to train on, in order of admission."""
    episodes = Episode.objects.filter(group__run=run)
    return episodes.select_related("group__task", "group__batch").order_by("group__number", "index")


def verdicts_of(user: Actor, task: Task, limit: int = 50) -> list[Episode]:
    """The newest episodes of a task that the user may read: the history of its verdicts."""
    return list(visible_episodes(user).filter(group__task=task)[:limit])
