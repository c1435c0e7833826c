"""Batches: assembly from ready groups, sending, sending again, what training made of them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from apps.runs import messaging, states
from apps.runs.events import WARNING, record_event
from apps.runs.models import Batch, BatchState, Group, GroupState, Outcome, Run, RunAttempt
from apps.runs.scheduling.batching import PlannedBatch, ReadyGroup, plan_batches
from apps.runs.services.groups import close_group
from gpu_workers.contracts.enums import GroupOutcome
from gpu_workers.contracts.messages import BatchGroup, BatchMessage
from gpu_workers.contracts.runspec import RunSpec

RESEND_AFTER = timedelta(seconds=60)  # a trainer that waits so long for a batch sent to it has lost the message


def assemble(run: Run, spec: RunSpec, attempt: RunAttempt) -> list[Batch]:
    """Close what is too old and send the batches that are full. The run is locked."""
    rows = {group.id: group for group in _lock(run, GroupState.READY)}
    plan = plan_batches(
        [ReadyGroup(group.id, group.number, group.min_version or 0) for group in rows.values()],
        next_index=run.batches.exclude(state=BatchState.ABANDONED).count(),
        num_steps=run.total_steps,
        batch_size=spec.rollout.prompts_per_batch,
        max_staleness=spec.rollout.max_staleness,
    )
    for stale in plan.stale:
        _close_stale(run, rows[stale.id], spec.rollout.max_staleness)
    return [_create(run, attempt, planned, rows) for planned in plan.batches]


def _lock(run: Run, state: GroupState) -> list[Group]:
    return list(run.groups.filter(state=state).select_for_update(no_key=True, of=("self",)))


def _close_stale(run: Run, group: Group, bound: int) -> None:
    message = f"Group {group.number} is from version {group.min_version}, older than the bound of {bound} allows."
    close_group(group, Outcome.STALE, message)
    record_event(run, "group_stale", message, WARNING, group=str(group.id), task=str(group.task_id))


def _create(run: Run, attempt: RunAttempt, planned: PlannedBatch, rows: Mapping[UUID, Group]) -> Batch:
    batch = Batch.objects.create(run=run, attempt=attempt.number, index=planned.index, sent_at=timezone.now())
    members = [rows[member.id] for member in planned.members]
    for group, member in zip(members, planned.members, strict=True):
        group.state = states.move_group(group.state, GroupState.BATCHED)
        group.batch, group.age = batch, member.age
    Group.objects.bulk_update(members, ["state", "batch", "age"])
    _send(batch, members)
    old = sum(1 for group in members if group.age)
    record_event(
        run,
        "batch_sent",
        f"Batch {planned.index + 1} sent: {len(members)} groups, {old} of them older than the policy.",
        batch=str(batch.id),
    )
    return batch


def _send(batch: Batch, members: list[Group]) -> None:
    message = BatchMessage(
        run_id=str(batch.run_id),
        attempt=batch.attempt,
        batch_id=str(batch.id),
        index=batch.index,
        groups=[BatchGroup(group_id=str(g.id), uri=g.uri, age=g.age or 0) for g in members],
    )
    transaction.on_commit(partial(messaging.send_batch, message), robust=True)


def send_again(run: Run, attempt: RunAttempt) -> list[Batch]:
    """Give a new attempt the batches that its checkpoint does not hold, in order."""
    waiting = list(run.batches.filter(state=BatchState.SENT).exclude(attempt=attempt.number).order_by("index"))
    for batch in waiting:
        _resend(batch, attempt.number, timezone.now())
    return waiting


def resend_lost(run: Run, attempt: RunAttempt, now: datetime) -> Batch | None:
    """The trainer waits for a batch that was sent long ago: send it again. Training it twice is refused there."""
    if attempt.activity != "waiting":
        return None
    batch = run.batches.filter(state=BatchState.SENT, sent_at__lt=now - RESEND_AFTER).order_by("index").first()
    if batch is None or batch.index != run.version:
        return None
    _resend(batch, attempt.number, now)
    record_event(run, "batch_resent", f"Batch {batch.index + 1} was sent again: the trainer still waits.", WARNING)
    return batch


def _resend(batch: Batch, attempt: int, now: datetime) -> None:
    batch.attempt = attempt
    batch.sent_at = now
    batch.save(update_fields=["attempt", "sent_at"])
    _send(batch, list(batch.groups.order_by("min_version", "number")))


def mark_trained(batch: Batch, skipped: Mapping[str, str]) -> None:
    """The batch is inside a durable checkpoint. `skipped`: groups the trainer left out, with its reasons."""
    if batch.state == BatchState.TRAINED:
        return
    batch.state = states.move_batch(batch.state, BatchState.TRAINED)
    batch.trained_at = timezone.now()
    batch.save(update_fields=["state", "trained_at"])
    for group in batch.groups.filter(state=GroupState.BATCHED).select_for_update(no_key=True, of=("self",)):
        reason = skipped.get(str(group.id), "")
        close_group(group, _outcome(reason), reason)


def _outcome(reason: str) -> Outcome:
    if not reason:
        return Outcome.TRAINED
    return Outcome.ZERO_VARIANCE if reason.startswith(GroupOutcome.ZERO_VARIANCE) else Outcome.REJECTED
