"""Batches: assembly from ready groups, sending, sending again, what training made of them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, QuerySet
from django.utils import timezone

from apps.runs import messaging, states
from apps.runs.events import WARNING, record_event
from apps.runs.models import Batch, BatchState, Group, GroupState, Outcome, Run, RunAttempt
from apps.runs.scheduling.batching import PlannedBatch, ReadyGroup, plan_batches
from apps.runs.services.dispatches import rollouts_supplied
from apps.runs.services.groups import close_group
from apps.runs.services.stragglers import Stragglers
from gpu_workers.contracts.enums import GroupOutcome
from gpu_workers.contracts.messages import BatchGroup, BatchMessage
from gpu_workers.contracts.runspec import RunSpec
from ratchet.commits import after_commit

SUPPLIED = 2  # batches with the trainer, the one it trains included: another would only wait
RESEND_AFTER = timedelta(seconds=60)  # a trainer that waits so long for a batch sent to it has lost the message


def assemble(run: Run, spec: RunSpec, attempt: RunAttempt) -> list[Batch]:
    """Close what is or will be too old and send the batches that are full. The run is locked."""
    batch_size, bound = spec.rollout.prompts_per_batch, spec.rollout.max_staleness
    states_of = dict(run.batches.values_list("state").annotate(n=Count("id")).order_by())
    num_trained, num_sent = states_of.get(BatchState.TRAINED, 0), states_of.get(BatchState.SENT, 0)
    next_index = num_trained + num_sent
    rows = {group.id: group for group in _lock(run.groups.filter(state=GroupState.READY))}
    ready = [ReadyGroup(group.id, group.number, group.min_version or 0) for group in rows.values()]
    # Younger ones than these no batch of this plan can leave behind.
    oldest = next_index + len(ready) // batch_size - bound
    late = _lock(run.groups.filter(state=GroupState.RUNNING, policy_version__lte=oldest))
    stragglers = Stragglers(run, spec, {group.id: group for group in late})
    plan = plan_batches(
        ready,
        next_index=next_index,
        num_steps=run.total_steps,
        batch_size=batch_size,
        max_staleness=bound,
        running=stragglers.running(),
        arm_of=stragglers.arm_of,
        holding_is_free=lambda index: index - num_trained >= SUPPLIED or rollouts_supplied(run),
    )
    for stale in plan.stale:
        _close_stale(run, rows[stale.id], bound)
    sent = [_create(run, attempt, planned, rows) for planned in plan.batches]
    stragglers.leave_behind(plan.left_behind)
    return sent


def _lock(groups: QuerySet[Group]) -> list[Group]:
    return list(groups.select_for_update(no_key=True, of=("self",)))


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
    after_commit(messaging.send_batch, message)


def send_again(run: Run, attempt: RunAttempt, version: int) -> list[Batch]:
    """Give a new attempt the batches that its checkpoint of `version` does not hold, in order.

    Those trained already are computed again: their groups are named by their rows and stay what they are.
    """
    missing = run.batches.exclude(state=BatchState.ABANDONED).filter(index__gte=version).order_by("index")
    waiting = list(missing.exclude(attempt=attempt.number))
    for batch in waiting:
        _resend(batch, attempt.number, timezone.now())
    return waiting


def resend_lost(run: Run, attempt: RunAttempt, now: datetime) -> Batch | None:
    """The trainer waits for a batch that was sent long ago: send it again. Training it twice is refused there."""
    if attempt.activity != "waiting":
        return None
    sent = run.batches.exclude(state=BatchState.ABANDONED).filter(sent_at__lt=now - RESEND_AFTER)
    batch = sent.filter(index=attempt.version or 0).first()
    if batch is None:
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
