"""Which ready groups form the next batches, which are too old for any, and which running ones are left behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from apps.runs.scheduling.staleness import age, is_stale
from apps.runs.scheduling.stragglers import Arm, RunningGroup


@dataclass(frozen=True)
class ReadyGroup:
    """A finished group with a training signal. `min_version` is that of its oldest token."""

    id: UUID
    number: int  # order of admission
    min_version: int


@dataclass(frozen=True)
class Member:
    id: UUID
    age: int


@dataclass(frozen=True)
class PlannedBatch:
    """Takes the policy from version `index` to `index + 1`."""

    index: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Plan:
    batches: list[PlannedBatch] = field(default_factory=list)
    stale: list[ReadyGroup] = field(default_factory=list)  # too old for the next batch, hence for every later one
    left_behind: list[RunningGroup] = field(default_factory=list)  # too old whenever they end: to be cancelled
    held_for: list[RunningGroup] = field(default_factory=list)  # what a batch that is full waits for


def _abort(group: RunningGroup) -> Arm:
    return Arm.ABORT


def plan_batches(
    ready: Sequence[ReadyGroup],
    *,
    next_index: int,
    num_steps: int,
    batch_size: int,
    max_staleness: int,
    running: Sequence[RunningGroup] = (),
    arm_of: Callable[[RunningGroup], Arm] = _abort,
    holding_is_free: Callable[[int], bool] = lambda index: False,
) -> Plan:
    """Form as many whole batches as there are groups for, oldest samples first, none older than the bound.

    Where batch k would leave running groups behind, it is held for them while `holding_is_free(k)`: trainer or rollouts
    have work without it. Then `arm_of` says for which of them it is held on.
    """
    plan = Plan()
    waiting = sorted(ready, key=lambda group: (group.min_version, group.number))
    unfinished = list(running)
    for index in range(next_index, num_steps):
        plan.stale.extend(group for group in waiting if is_stale(index, group.min_version, max_staleness))
        waiting = [group for group in waiting if not is_stale(index, group.min_version, max_staleness)]
        plan.left_behind.extend(group for group in unfinished if index - group.version > max_staleness)
        unfinished = [group for group in unfinished if index - group.version <= max_staleness]
        if len(waiting) < batch_size:
            break
        if index + 1 < num_steps:
            last_chance = [group for group in unfinished if index + 1 - group.version > max_staleness]
            free = bool(last_chance) and holding_is_free(index)
            held_for = [group for group in last_chance if free or arm_of(group) is Arm.WAIT]
            left = [group for group in last_chance if group not in held_for]
            plan.left_behind.extend(left)
            unfinished = [group for group in unfinished if group not in left]
            if held_for:
                plan.held_for.extend(held_for)
                break
        chosen, waiting = waiting[:batch_size], waiting[batch_size:]
        members = tuple(Member(group.id, age(index, group.min_version)) for group in chosen)
        plan.batches.append(PlannedBatch(index, members))
    return plan
