"""Legal changes of state of suites and tasks. Pure."""

from apps.tasks.models import SuiteState, TaskState

SUITE_TRANSITIONS: dict[str, frozenset[str]] = {
    SuiteState.CHECKING: frozenset({SuiteState.READY, SuiteState.FAILED}),
    SuiteState.FAILED: frozenset({SuiteState.CHECKING, SuiteState.READY}),  # checked again, or a task was released
    SuiteState.READY: frozenset(),
}
TASK_TRANSITIONS: dict[str, frozenset[str]] = {
    TaskState.UNCHECKED: frozenset({TaskState.READY, TaskState.QUARANTINED}),
    TaskState.QUARANTINED: frozenset({TaskState.READY, TaskState.UNCHECKED}),  # released; checked again
    TaskState.READY: frozenset({TaskState.QUARANTINED}),  # put back, and only what a person had released
}


class IllegalTransition(RuntimeError):
    """A change of state that the table does not know: a broken invariant."""


def check_transition(table: dict[str, frozenset[str]], old: str, new: str) -> None:
    """Raise IllegalTransition unless the table allows the change."""
    if new not in table[old]:
        raise IllegalTransition(f"{old} → {new} is not allowed")
