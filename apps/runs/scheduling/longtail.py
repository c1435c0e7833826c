"""Where the compute of a run's episodes went: the slowest groups, retries and what was cancelled, by task."""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SLOWEST_SHARE = 0.1  # of the finished groups

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class GroupCost(Generic[Key]):
    """Episode-seconds: a second of one episode in flight, whether it waits for tokens, a tool or a verdict."""

    task: Key
    seconds: float  # of the dispatch whose result was stored; 0: none was
    retry_seconds: float = 0.0  # of dispatches that failed or were never heard of again, at most
    cancelled_seconds: float = 0.0  # of a dispatch that was given up while it ran
    num_retries: int = 0
    arm: str = ""  # of a straggler: wait | abort
    propensity: float | None = None
    recovery_seconds: float = 0.0  # of `seconds`, after it was found to be a straggler
    num_passed: int = 0  # episodes


@dataclass
class TaskCost(Generic[Key]):
    """Sums over the groups of one task; `key` is its name for people, where somebody has filled it in."""

    task: Key
    key: str = ""
    num_groups: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0  # of its groups among the slowest share of the run
    retry_seconds: float = 0.0
    cancelled_seconds: float = 0.0
    num_retries: int = 0
    num_cancelled: int = 0  # groups

    @property
    def total_seconds(self) -> float:
        return self.seconds + self.retry_seconds + self.cancelled_seconds


@dataclass
class ArmCost:
    """Stragglers that a draw put into one arm (propensity strictly between 0 and 1): these alone compare."""

    arm: str
    num_groups: int = 0
    seconds: float = 0.0  # all that was spent on them
    recovery_seconds: float = 0.0
    num_passed: int = 0  # episodes


@dataclass
class LongTail(Generic[Key]):
    """Totals in episode-seconds; `slowest_seconds` of the `num_slowest` slowest of the finished groups."""

    num_groups: int
    num_slowest: int
    total_seconds: float
    slowest_seconds: float
    retry_seconds: float
    cancelled_seconds: float
    tasks: list[TaskCost[Key]] = field(default_factory=list)  # most expensive first
    arms: list[ArmCost] = field(default_factory=list)


def account(groups: Iterable[GroupCost[Key]]) -> LongTail[Key]:
    """Sum the groups up; every second is counted once: as stored work, as a retry or as cancelled."""
    rows = list(groups)
    finished = sorted((row for row in rows if row.seconds > 0), key=lambda row: row.seconds, reverse=True)
    slowest = {id(row) for row in finished[: math.ceil(SLOWEST_SHARE * len(finished))]}
    tasks: dict[Key, TaskCost[Key]] = {}
    arms = {arm: ArmCost(arm) for arm in ("abort", "wait")}
    for row in rows:
        task = tasks.setdefault(row.task, TaskCost(row.task))
        task.num_groups += 1
        task.num_retries += row.num_retries
        task.num_cancelled += row.cancelled_seconds > 0
        task.seconds += row.seconds
        task.slowest_seconds += row.seconds if id(row) in slowest else 0.0
        task.retry_seconds += row.retry_seconds
        task.cancelled_seconds += row.cancelled_seconds
        if row.arm and row.propensity is not None and 0.0 < row.propensity < 1.0:
            arm = arms[row.arm]
            arm.num_groups += 1
            arm.seconds += row.seconds + row.retry_seconds + row.cancelled_seconds
            arm.recovery_seconds += row.recovery_seconds
            arm.num_passed += row.num_passed
    costs = sorted(tasks.values(), key=lambda task: task.total_seconds, reverse=True)
    return LongTail(
        num_groups=len(rows),
        num_slowest=len(slowest),
        total_seconds=sum(task.total_seconds for task in costs),
        slowest_seconds=sum(task.slowest_seconds for task in costs),
        retry_seconds=sum(task.retry_seconds for task in costs),
        cancelled_seconds=sum(task.cancelled_seconds for task in costs),
        tasks=costs,
        arms=list(arms.values()),
    )
