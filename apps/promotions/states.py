"""Legal states of a gate. Pure."""

from apps.promotions.models import GateState as State

_TRANSITIONS: dict[str, frozenset[State]] = {
    State.EVALUATING: frozenset({State.WAITING, State.FAILED}),
    State.WAITING: frozenset({State.WAITING, State.DECIDED}),
}


def move_gate(state: str, target: State) -> State:
    """The target, if it is legal from here."""
    if target not in _TRANSITIONS.get(state, frozenset()):
        raise ValueError(f"a gate cannot go from {state} to {target}")
    return target
