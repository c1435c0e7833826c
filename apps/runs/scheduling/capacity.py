"""How many groups the rollout fleet takes, and how runs that use one fleet divide it."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

LONG_WAIT = 0.25  # of the time a group takes: above it groups queue, and more of them would only queue longer
HEADROOM = 1.25  # over what is served while groups queue, so that no worker runs dry
GROWTH = 2.0  # over what is served while none queue
LEAST_SAMPLES = 8
QUEUE = 0.5  # requests waiting in the engines, as a share of those running, that keep them busy between two looks
STEP = 0.5  # more requests at once, as a share of those running, while none waits

Claimant = TypeVar("Claimant", bound=Hashable)


@dataclass(frozen=True)
class Served:
    """A group that finished: seconds it waited for a worker and seconds it then took; `finished` on any one clock."""

    waited: float
    took: float
    finished: float


@dataclass(frozen=True)
class Capacity:
    """Groups worth having with the workers at once; `saturated`: those that are there wait for a worker."""

    num_groups: int
    saturated: bool


def measure_capacity(served: Sequence[Served], least: int) -> Capacity:
    """From the groups that finished last, by Little's law; `least` until they say more."""
    span = max((s.finished for s in served), default=0.0) - min((s.finished - s.took for s in served), default=0.0)
    if len(served) < LEAST_SAMPLES or span <= 0:
        return Capacity(least, saturated=False)
    took = sum(s.took for s in served)
    concurrency = took / span
    if sum(s.waited for s in served) <= LONG_WAIT * took:
        return Capacity(max(least, round(GROWTH * concurrency)), saturated=False)
    return Capacity(max(1, round(HEADROOM * concurrency)), saturated=True)


@dataclass(frozen=True)
class EngineLoad:
    """Requests of all engines at one moment."""

    running: float
    queued: float


def engine_room(load: EngineLoad, sent_since: int, least: int) -> int:
    """Episodes worth sending now, given those sent since the look at the engines.

    Beyond a short queue an episode only waits, and grows old: sent later, a newer version would have sampled it.
    """
    if load.queued > 0:
        return max(0, round(QUEUE * load.running - load.queued) - sent_since)
    return max(0, max(least, round(STEP * load.running)) - sent_since)


def fair_shares(capacity: int, demands: Mapping[Claimant, int]) -> dict[Claimant, int]:
    """Max-min fair: nobody gets more than it asks for, and what one leaves the others divide equally."""
    shares = dict.fromkeys(demands, 0)
    left = capacity
    waiting = sorted(demands, key=lambda claimant: demands[claimant])
    for position, claimant in enumerate(waiting):
        shares[claimant] = min(demands[claimant], left // (len(waiting) - position))
        left -= shares[claimant]
    return shares
