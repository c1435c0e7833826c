"""Groups: admission, dispatch, results that never came, ends."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from apps.accounts.models import Project
from apps.runs import messaging, states
from apps.runs.models import Group, GroupState, Outcome, Run
from apps.runs.signals import group_stored
from apps.tasks.models import Task
from gpu_workers.contracts.enums import Purpose
from gpu_workers.contracts.messages import GroupSignal, PolicyRef, RolloutJob, Sampling
from gpu_workers.contracts.runspec import parse_run_spec
from ratchet.commits import after_commit

OPEN_STATES = (GroupState.PENDING, GroupState.RUNNING, GroupState.READY, GroupState.BATCHED)
UNFINISHED_STATES = (GroupState.PENDING, GroupState.RUNNING)
EVALUATION_ATTEMPTS = 3  # dispatches of an evaluation group
DEADLINE_GRACE = timedelta(seconds=10)  # the worker's own time-out reports first
DISPATCH_FIELDS = [
    "state", "dispatch", "dispatched_at", "started_at", "not_before", "deadline_at", "policy_adapter", "policy_weights",
    "policy_version",
]  # fmt: skip
CLOSE_FIELDS = [
    "state", "outcome", "outcome_reason", "finished_at", "boundary", "transcript", "retry_seconds", "cancelled_seconds",
]  # fmt: skip
_BACKOFF_SECONDS = 2.0
_MAX_BACKOFF_SECONDS = 60.0


def create_group(
    *,
    project: Project,
    task: Task,
    purpose: Purpose | str,
    size: int,
    policy_adapter: str = "",
    policy_weights: str = "",
    policy_version: int,
    num_shots: int,
    sampling: Sampling,
    run: Run | None = None,
    number: int = 0,
    run_attempt: int = 0,
    timeout_seconds: float = 300.0,
    requeue_of: Group | None = None,
) -> Group:
    """Admit one group; it waits until `dispatch_group`."""
    return Group.objects.create(
        project=project,
        run=run,
        run_attempt=run_attempt,
        number=number,
        task=task,
        purpose=str(purpose),
        size=size,
        policy_adapter=policy_adapter,
        policy_weights=policy_weights,
        policy_version=policy_version,
        num_shots=num_shots,
        sampling=msgspec.to_builtins(sampling),
        timeout_seconds=timeout_seconds,
        requeue_of=requeue_of,
        requeue_number=requeue_of.requeue_number + 1 if requeue_of else 0,
    )


def dispatch_group(group: Group) -> None:
    """Send a pending group to the rollout workers once the transaction is committed."""
    now = timezone.now()
    group.state = states.move_group(group.state, GroupState.RUNNING)
    group.dispatch += 1
    group.dispatched_at, group.started_at, group.not_before = now, None, None
    group.deadline_at = now + timedelta(seconds=group.timeout_seconds)
    group.save(update_fields=DISPATCH_FIELDS)
    job = RolloutJob(
        group_id=str(group.id),
        attempt=group.dispatch,
        purpose=Purpose(group.purpose),
        task=group.task.bundle,
        group_size=group.size,
        policy=PolicyRef(
            adapter=group.policy_adapter,
            weights=group.policy_weights,
            version=group.policy_version,
            num_shots=group.num_shots,
        ),
        sampling=msgspec.convert(group.sampling, Sampling),
        deadline=group.deadline_at.timestamp(),
        run_id=str(group.run_id or ""),
        run_attempt=group.run_attempt,
        engines=list(settings.ROLLOUT_FULL_ENGINE_URLS) if group.policy_weights else [],
        audit_share=_audit_share(group),
    )
    after_commit(messaging.send_rollout, job)


def _audit_share(group: Group) -> float:
    """Every episode of an evaluation is audited; of a run's, the share that its spec names."""
    return 1.0 if group.run is None else parse_run_spec(group.run.spec).rollout.audit_share


def close_group(group: Group, outcome: Outcome | str, reason: str = "", *, announce: bool = False) -> None:
    """End a group in exactly one outcome. `announce`: nothing was stored, so receivers hear of it here."""
    _end(group, outcome, reason)
    group.save(update_fields=CLOSE_FIELDS)
    if announce:
        group_stored.send(sender=Group, group=group)


def _end(group: Group, outcome: Outcome | str, reason: str) -> None:
    now = timezone.now()
    if group.state == GroupState.RUNNING:
        group.cancelled_seconds += group.size * _seconds_since(group.dispatched_at, now)
    group.state = states.move_group(group.state, GroupState.CLOSED)
    group.outcome = str(outcome)
    group.outcome_reason = reason
    group.finished_at = group.finished_at or now


def give_up(groups: Sequence[Group], outcome: Outcome, reason: str) -> None:
    """Close groups whatever they are doing, and tell the workers that run them to stop."""
    running = [str(group.id) for group in groups if group.state == GroupState.RUNNING]
    for group in groups:
        _end(group, outcome, reason)
    Group.objects.bulk_update(groups, CLOSE_FIELDS, batch_size=500)
    if running:
        signal = GroupSignal(group_ids=running, reason=reason)
        after_commit(messaging.signal_groups, signal)


def _seconds_since(start: datetime | None, now: datetime) -> float:
    return max(0.0, (now - start).total_seconds()) if start else 0.0


def fail_dispatch(group: Group, *, boundary: str, error: str, max_attempts: int, seconds: float) -> bool:
    """The current dispatch gave no result in `seconds`: wait and try again, or close. Returns whether it tries on."""
    group.boundary = boundary[:16]
    group.outcome_reason = error
    group.retry_seconds += group.size * max(0.0, seconds)
    if group.dispatch >= max_attempts:
        group.state = states.move_group(group.state, GroupState.PENDING)  # nobody runs it any more
        close_group(group, Outcome.INFRASTRUCTURE_FAILED, f"{error} (tried {group.dispatch} times)", announce=True)
        return False
    group.state = states.move_group(group.state, GroupState.PENDING)
    wait = min(_MAX_BACKOFF_SECONDS, _BACKOFF_SECONDS * 2 ** (group.dispatch - 1))
    group.not_before = timezone.now() + timedelta(seconds=wait)
    group.deadline_at = None
    group.save(update_fields=[*CLOSE_FIELDS, "not_before", "deadline_at"])
    return True


def overdue(groups: QuerySet[Group], now: datetime) -> QuerySet[Group]:
    """Running groups whose result is past its deadline, locked against a result that is just arriving."""
    late = groups.filter(state=GroupState.RUNNING, deadline_at__lt=now - DEADLINE_GRACE)
    return late.select_for_update(no_key=True, skip_locked=True, of=("self",))


def due(groups: QuerySet[Group], now: datetime) -> QuerySet[Group]:
    """Waiting groups whose back-off is over, oldest first, locked."""
    ready = groups.filter(state=GroupState.PENDING).exclude(not_before__gt=now).order_by("number", "id")
    return ready.select_related("task").select_for_update(no_key=True, skip_locked=True, of=("self",))


def loose_groups() -> QuerySet[Group]:
    """Groups of no run: those of evaluations."""
    return Group.objects.filter(run=None, state__in=UNFINISHED_STATES)


def expire(groups: QuerySet[Group], max_attempts: int, now: datetime) -> list[Group]:
    """Send groups again that have no result by their deadline; their workers are taken for dead."""
    late = list(overdue(groups, now))
    for group in late:
        error = f"no result within {group.timeout_seconds:.0f} s of dispatch {group.dispatch}"
        seconds = _seconds_since(group.dispatched_at, now)
        fail_dispatch(group, boundary="infrastructure", error=error, max_attempts=max_attempts, seconds=seconds)
    return late


def cancel_open(run: Run, reason: str) -> int:
    """Cancel all open groups of a locked run."""
    opened = list(run.groups.filter(state__in=OPEN_STATES).select_for_update(no_key=True, of=("self",)))
    give_up(opened, Outcome.CANCELLED, reason)
    return len(opened)


def adapters_in_use(names: list[str]) -> set[str]:
    """Which of these adapters open groups of any run or evaluation still name."""
    rows: Any = Group.objects.filter(policy_adapter__in=names, state__in=UNFINISHED_STATES)
    return set(rows.values_list("policy_adapter", flat=True))
