"""Legal transitions of runs, attempts, groups and batches: pure tables, one function each."""

from collections.abc import Mapping

from apps.runs.models import AttemptState, BatchState, GroupState, RunState


class IllegalTransition(RuntimeError):
    """A change of state that the table does not allow: a broken invariant, never a user's mistake."""


_END = frozenset({RunState.FAILED, RunState.HALTED, RunState.CANCELLED})

RUN: Mapping[str, frozenset[str]] = {
    RunState.QUEUED: _END | {RunState.STARTING, RunState.PAUSED},
    RunState.STARTING: _END | {RunState.RUNNING, RunState.PAUSED},
    RunState.RUNNING: _END | {RunState.PAUSED, RunState.TRAINED},
    RunState.PAUSED: _END | {RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.TRAINED},
    RunState.TRAINED: _END | {RunState.SUCCEEDED},
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.HALTED: frozenset(),
    RunState.CANCELLED: frozenset(),
}
ATTEMPT: Mapping[str, frozenset[str]] = {
    AttemptState.SENT: frozenset({AttemptState.RUNNING, AttemptState.ENDED}),
    AttemptState.RUNNING: frozenset({AttemptState.ENDED}),
    AttemptState.ENDED: frozenset(),
}
GROUP: Mapping[str, frozenset[str]] = {
    GroupState.PENDING: frozenset({GroupState.RUNNING, GroupState.READY, GroupState.CLOSED}),
    GroupState.RUNNING: frozenset({GroupState.PENDING, GroupState.READY, GroupState.CLOSED}),
    GroupState.READY: frozenset({GroupState.BATCHED, GroupState.CLOSED}),
    GroupState.BATCHED: frozenset({GroupState.CLOSED}),
    GroupState.CLOSED: frozenset(),
}
BATCH: Mapping[str, frozenset[str]] = {
    BatchState.SENT: frozenset({BatchState.TRAINED, BatchState.ABANDONED}),
    BatchState.TRAINED: frozenset(),
    BatchState.ABANDONED: frozenset(),
}


def _move(noun: str, table: Mapping[str, frozenset[str]], current: str, target: str) -> str:
    if target not in table[current]:
        raise IllegalTransition(f"{noun} cannot go from {current} to {target}")
    return target


def move_run(current: str, target: str) -> str:
    """The new state of a run, or IllegalTransition."""
    return _move("a run", RUN, current, target)


def move_attempt(current: str, target: str) -> str:
    """The new state of a trainer attempt, or IllegalTransition."""
    return _move("an attempt", ATTEMPT, current, target)


def move_group(current: str, target: str) -> str:
    """The new state of a group, or IllegalTransition. PENDING → READY: a late first result arrived."""
    return _move("a group", GROUP, current, target)


def move_batch(current: str, target: str) -> str:
    """The new state of a batch, or IllegalTransition."""
    return _move("a batch", BATCH, current, target)
