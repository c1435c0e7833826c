"""Which ready groups form the next batches, and which are too old for any."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from apps.runs.scheduling.staleness import age, is_stale


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


def plan_batches(
    ready: Sequence[ReadyGroup], *, next_index: int, num_steps: int, batch_size: int, max_staleness: int
) -> Plan:
    """Form as many whole batches as there are groups for, oldest samples first, none older than the bound."""
    plan = Plan()
    waiting = sorted(ready, key=lambda group: (group.min_version, group.number))
    for index in range(next_index, num_steps):
        plan.stale.extend(group for group in waiting if is_stale(index, group.min_version, max_staleness))
        waiting = [group for group in waiting if not is_stale(index, group.min_version, max_staleness)]
        if len(waiting) < batch_size:
            break
        chosen, waiting = waiting[:batch_size], waiting[batch_size:]
        members = tuple(Member(group.id, age(index, group.min_version)) for group in chosen)
        plan.batches.append(PlannedBatch(index, members))
    return plan
