"""What a RunSpec may say of its schedule: stragglers, and the rules that halt a run."""

from enum import StrEnum
from typing import Annotated

import msgspec

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_NonNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Stragglers(StrEnum):
    """What becomes of a running group that the next batch would leave behind: too old for every later one."""

    WAIT = "wait"  # the batch is held until the group ends, at most until its deadline
    ABORT = "abort"  # the batch goes, the group is cancelled, its task comes again
    CONTINUE = "continue"  # as abort, and running episodes go on with every newer version as it is installed


class HealthSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rules that halt a run. One of a step's numbers fires after `window` steps in a row beyond it. 0: no such rule."""

    window: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    max_mismatch: _NonNegative = 1.0  # nats a token: KL k3 of the trainer's against the behaviour's log-probs
    min_effective_sample_size: _Share = 0.05  # of the importance ratios
    min_entropy: _NonNegative = 1e-4  # nats a token
    max_entropy: _NonNegative = 0.0
    max_grad_norm: _NonNegative = 1e4  # before clipping
    max_zero_variance_share: _Share = 1.0  # of the last closed groups
    stall_seconds: _NonNegative = 1800.0  # without a step and without a finished group
