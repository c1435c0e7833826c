"""Admission of training groups by the staleness rule."""

import random

from django.db.models import Count, Max, Q

from apps.runs.models import BatchState, Group, GroupState, Outcome, Run
from apps.runs.scheduling import admission, order
from apps.runs.services.groups import UNFINISHED_STATES, create_group
from apps.runs.services.installs import policy_names
from apps.tasks.models import Task
from apps.tasks.selectors import ready_tasks
from gpu_workers.contracts.enums import Purpose, Split
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.runspec import RunSpec


def admit_groups(run: Run, spec: RunSpec, attempt: int) -> list[Group]:
    """Admit as many groups as the bound leaves room for: tasks that went stale first, then the next in order."""
    room = admission.room(_demand(run, spec))
    if room == 0:
        return []
    last = run.groups.aggregate(last=Max("number"))["last"] or 0
    names = policy_names(run, run.confirmed_version)
    stale = _requeues(run, spec, room)
    sources: list[tuple[Task, Group | None]] = [(group.task, group) for group in stale]
    sources += [(task, None) for task in _next_tasks(run, spec, room - len(stale))]
    return [
        create_group(
            project=run.project,
            task=task,
            purpose=Purpose.TRAIN,
            size=spec.rollout.group_size,
            **names,
            policy_version=run.confirmed_version,
            num_shots=spec.rollout.num_shots,
            sampling=_sampling(spec, number),
            run=run,
            number=number,
            run_attempt=attempt,
            timeout_seconds=spec.rollout.group_timeout_seconds,
            requeue_of=requeue_of,
        )
        for number, (task, requeue_of) in enumerate(sources, start=last + 1)
    ]


def _demand(run: Run, spec: RunSpec) -> admission.Demand:
    # One statement, one snapshot: a group whose result arrives meanwhile must not fall between two counts.
    counts = run.groups.aggregate(
        num_ready=Count("id", filter=Q(state=GroupState.READY)),
        num_unfinished=Count("id", filter=Q(state__in=UNFINISHED_STATES)),
    )
    return admission.Demand(
        batch_size=spec.rollout.prompts_per_batch,
        num_steps=run.total_steps,
        max_staleness=spec.rollout.max_staleness,
        confirmed_version=run.confirmed_version,
        num_batches=run.batches.exclude(state=BatchState.ABANDONED).count(),
        over_sampling=spec.rollout.over_sampling,
        **counts,
    )


def _requeues(run: Run, spec: RunSpec, limit: int) -> list[Group]:
    """Stale groups whose task has not had its next chance yet."""
    stale = run.groups.filter(
        outcome=Outcome.STALE, requeues__isnull=True, requeue_number__lt=spec.rollout.max_requeues
    )
    return list(stale.select_related("task").order_by("number")[:limit])


def _next_tasks(run: Run, spec: RunSpec, count: int) -> list[Task]:
    if count <= 0:
        return []
    ids = train_task_ids(run, spec)
    positions = range(run.next_task, run.next_task + count)
    chosen = [ids[order.task_index(position, len(ids), spec.seed)] for position in positions]
    tasks = Task.objects.in_bulk(chosen)
    run.next_task += count
    run.save(update_fields=["next_task"])
    return [tasks[task_id] for task_id in chosen]


def train_task_ids(run: Run, spec: RunSpec) -> list[object]:
    """Ids of the run's train tasks in a fixed order; of more than `max_train_tasks` a seeded sample."""
    ids: list[object] = list(ready_tasks(run.suite, Split.TRAIN).values_list("id", flat=True))
    if spec.max_train_tasks and spec.max_train_tasks < len(ids):
        return random.Random(f"{spec.seed}/tasks").sample(ids, spec.max_train_tasks)
    return ids


def _sampling(spec: RunSpec, number: int) -> Sampling:
    return Sampling(
        max_new_tokens=spec.rollout.max_new_tokens,
        temperature=spec.rollout.temperature,
        top_p=spec.rollout.top_p,
        seed=order.group_seed(spec.seed, number),
    )
