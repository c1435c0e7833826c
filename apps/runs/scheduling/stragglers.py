"""Groups that the next batch would leave behind: waited for or cancelled, by policy or by a recorded draw."""

import random
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from gpu_workers.contracts.scheduling import Stragglers


class Arm(StrEnum):
    """What was decided for a straggler, once and for all."""

    WAIT = "wait"
    ABORT = "abort"


@dataclass(frozen=True)
class RunningGroup:
    """A group with the workers. `version` is the oldest its tokens can be of; `arm`, once decided."""

    id: UUID
    number: int
    version: int
    arm: Arm | None = None


@dataclass(frozen=True)
class Decision:
    """`propensity`: the probability with which a straggler is waited for; 0 and 1 are no draw."""

    arm: Arm
    propensity: float


def decide(
    policy: Stragglers, recovery_share: float, *, seed: int, number: int, requeue_number: int, max_requeues: int
) -> Decision:
    """The fate of straggler `number` of a run. A task on its last chance is waited for: slowness starves none."""
    if policy is Stragglers.WAIT or 0 < max_requeues == requeue_number:
        return Decision(Arm.WAIT, 1.0)
    drawn = random.Random(f"{seed}/straggler/{number}").random() < recovery_share
    return Decision(Arm.WAIT if drawn else Arm.ABORT, recovery_share)
