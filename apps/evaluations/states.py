"""Legal states of an evaluation. Pure."""

from apps.evaluations.models import EvaluationState as State

OPEN_STATES = (State.QUEUED, State.RUNNING)
FINAL_STATES = (State.FINISHED, State.FAILED, State.CANCELLED)

_TRANSITIONS: dict[str, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING, State.FAILED, State.CANCELLED}),
    State.RUNNING: frozenset({State.FINISHED, State.FAILED, State.CANCELLED}),
}


def move_evaluation(state: str, target: State) -> State:
    """The target, if it is legal from here."""
    if target not in _TRANSITIONS.get(state, frozenset()):
        raise ValueError(f"an evaluation cannot go from {state} to {target}")
    return target
