"""Answers what a suite's report asks of stored episodes: attempts, passes, a baseline, episodes to judge again."""

from collections import defaultdict
from typing import Any

from django.db.models import Count, Q
from django.dispatch import receiver

from apps.evaluations.models import EvaluationState
from apps.policies.models import Policy, PolicyKind
from apps.runs.models import Episode
from apps.tasks.models import Suite
from apps.tasks.reports.attempts import SuiteAttempts, TaskAttempts, attempts_wanted
from gpu_workers.contracts.enums import StopReason
from gpu_workers.contracts.replays import StoredEpisode

_COUNTS = {"n": Count("id"), "passed": Count("id", filter=Q(success=True))}


@receiver(attempts_wanted)
def suite_attempts(suite: Suite, **_: Any) -> SuiteAttempts:
    """Of every scored episode on the suite, whatever it was made for."""
    scored = Episode.objects.filter(group__task__suite=suite, reward__isnull=False)
    baseline = _baseline(suite)
    measured = _by_task(scored.filter(group__evaluation_item__arm__policy=baseline)) if baseline else {}
    stored = _stored(suite)
    tasks = {
        task: TaskAttempts(n, passed, *measured.get(task, (0, 0)), stored=tuple(stored.get(task, ())))
        for task, (n, passed) in _by_task(scored).items()
    }
    return SuiteAttempts(baseline.title if baseline else "", tasks)


def _baseline(suite: Suite) -> Policy | None:
    """The policy with most scored episodes in finished evaluations on the suite; a prompt-only one before others."""
    episodes = Episode.objects.filter(
        group__task__suite=suite,
        reward__isnull=False,
        group__evaluation_item__evaluation__state=EvaluationState.FINISHED,
        group__evaluation_item__arm__policy__isnull=False,
    )
    rows = episodes.values("group__evaluation_item__arm__policy_id").annotate(n=Count("id")).order_by()
    counts = {row["group__evaluation_item__arm__policy_id"]: row["n"] for row in rows}
    policies = Policy.objects.filter(pk__in=counts)
    return min(policies, key=lambda p: (p.kind != PolicyKind.PROMPT, -counts[p.pk], str(p.pk)), default=None)


def _by_task(episodes: Any) -> dict[str, tuple[int, int]]:
    rows = episodes.values("group__task_id").annotate(**_COUNTS).order_by()
    return {str(row["group__task_id"]): (row["n"], row["passed"]) for row in rows}


def _stored(suite: Suite) -> dict[str, list[StoredEpisode]]:
    """The newest episode that passed and the newest that failed of every task, of those that came to their end."""
    episodes = Episode.objects.filter(group__task__suite=suite, reward__isnull=False)
    episodes = episodes.exclude(group__transcript="").exclude(stop_reason=StopReason.ERROR)
    newest = episodes.order_by("group__task_id", "success", "-id").distinct("group__task_id", "success")
    found: dict[str, list[StoredEpisode]] = defaultdict(list)
    for pk, task, transcript, index in newest.values_list("id", "group__task_id", "group__transcript", "index"):
        found[str(task)].append(StoredEpisode(episode_id=str(pk), transcript=transcript, index=index))
    return found
