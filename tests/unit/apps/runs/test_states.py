"""Transition tables of runs, attempts, groups and batches."""

import itertools

import pytest

from apps.runs import states
from apps.runs.models import FINAL_RUN_STATES, AttemptState, BatchState, GroupState, RunState


@pytest.mark.parametrize(
    ("table", "enum"),
    [
        (states.RUN, RunState),
        (states.ATTEMPT, AttemptState),
        (states.GROUP, GroupState),
        (states.BATCH, BatchState),
    ],
)
def test_every_state_has_a_row_and_leads_to_states(table, enum):
    assert set(table) == set(enum)
    assert set().union(*table.values()) <= set(enum)


@pytest.mark.parametrize("state", FINAL_RUN_STATES)
def test_nothing_leaves_a_final_state(state):
    assert states.RUN[state] == frozenset()


def test_a_run_walks_to_its_end():
    path = [RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.TRAINED, RunState.SUCCEEDED]
    for current, target in itertools.pairwise(path):
        assert states.move_run(current, target) == target


@pytest.mark.parametrize(
    ("move", "current", "target"),
    [
        (states.move_run, RunState.QUEUED, RunState.TRAINED),
        (states.move_run, RunState.SUCCEEDED, RunState.RUNNING),
        (states.move_attempt, AttemptState.ENDED, AttemptState.RUNNING),
        (states.move_group, GroupState.CLOSED, GroupState.READY),
        (states.move_group, GroupState.BATCHED, GroupState.READY),
        (states.move_batch, BatchState.TRAINED, BatchState.SENT),
    ],
)
def test_illegal_moves_are_broken_invariants(move, current, target):
    with pytest.raises(states.IllegalTransition, match=f"from {current} to {target}"):
        move(current, target)
