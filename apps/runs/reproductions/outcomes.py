"""What a reproduction proves about the task. Pure."""

import math
from dataclasses import dataclass

from apps.runs.reproductions.models import ReproductionOutcome
from gpu_workers.contracts.enums import Verdict

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Judged:
    """A verdict with its reward; None: there is no reward."""

    verdict: str
    reward: float | None

    def __str__(self) -> str:
        return self.verdict if self.reward is None else f"{self.verdict} with reward {self.reward:g}"


def judge_outcome(
    stored: Judged, again: Judged, *, left_path: bool, verifier_changed: bool = False
) -> ReproductionOutcome:
    """Same verdict and reward, or not. An episode that was stored without a reward has nothing to be compared with.

    Another verdict of a verifier that changed since says nothing about the task.
    """
    if stored.reward is None or stored.verdict not in (Verdict.PASS, Verdict.FAIL):
        return ReproductionOutcome.NOTHING_TO_COMPARE
    same_reward = again.reward is not None and math.isclose(stored.reward, again.reward, abs_tol=_TOLERANCE)
    if again.verdict != stored.verdict or not same_reward:
        return ReproductionOutcome.VERIFIER_CHANGED if verifier_changed else ReproductionOutcome.DIFFERENT
    return ReproductionOutcome.LEFT_PATH if left_path else ReproductionOutcome.SAME


def tell_outcome(outcome: str, stored: Judged, again: Judged, num_calls: int, num_different: int) -> str:
    """The outcome as a sentence for people."""
    outputs = _outputs(num_calls, num_different)
    match outcome:
        case ReproductionOutcome.SAME:
            return f"The verdict is the same, {again}; {outputs}."
        case ReproductionOutcome.DIFFERENT:
            return f"The verdict was {stored}; the same actions now give {again}; {outputs}."
        case ReproductionOutcome.VERIFIER_CHANGED:
            return f"The verdict was {stored}; the verifier has changed since, and gives {again}; {outputs}."
        case ReproductionOutcome.LEFT_PATH:
            return f"The verdict is the same, {again}, but the episode did not end where it had ended; {outputs}."
    return f"The episode was stored without a verdict; its actions now give {again}; {outputs}."


def _outputs(num_calls: int, num_different: int) -> str:
    if not num_calls:
        return "no tool was called"
    if not num_different:
        return "the one tool output agrees" if num_calls == 1 else f"all {num_calls} tool outputs agree"
    return f"{num_different} of {num_calls} tool outputs {'differs' if num_different == 1 else 'differ'}"
