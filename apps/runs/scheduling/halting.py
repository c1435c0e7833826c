"""Rules that end a run by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

ERROR_WINDOW = 20  # last closed groups looked at
ERROR_LEAST = 10  # fewer say nothing
SIGNAL_BATCHES = 10  # batches' worth of groups in a row without signal


@dataclass(frozen=True)
class Halt:
    code: str
    message: str


def check_errors(outcomes: Sequence[str], reasons: Sequence[str], max_share: float) -> Halt | None:
    """`outcomes` of the last closed groups, newest first, with their reasons."""
    window = list(outcomes[:ERROR_WINDOW])
    failed = [index for index, outcome in enumerate(window) if outcome == "infrastructure_failed"]
    if len(window) < ERROR_LEAST or len(failed) <= max_share * len(window):
        return None
    share = f"{len(failed)} of the last {len(window)} groups"
    return Halt("error_share", f"{share} failed by infrastructure (limit {max_share:.0%}). Last: {reasons[failed[0]]}")


def check_signal(outcomes: Sequence[str], batch_size: int) -> Halt | None:
    """Rewards that are all equal, group after group, would generate for ever without a step."""
    least = max(ERROR_WINDOW, SIGNAL_BATCHES * batch_size)
    window = outcomes[:least]
    if len(window) < least or any(outcome != "zero_variance" for outcome in window):
        return None
    return Halt(
        "no_signal",
        f"The last {least} groups had no spread of reward, so nothing can be learnt: the tasks are all solved or all "
        "failed. Use tasks of another difficulty, a larger group_size, or a policy that solves some of them.",
    )
