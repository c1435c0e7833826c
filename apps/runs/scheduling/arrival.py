"""What becomes of a group when its episodes arrive: ready to train, or dropped with a reason."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_workers.contracts.enums import GroupOutcome

ZERO_STD = 1e-8  # below it the advantages are zero (algorithms: GRPO)


@dataclass(frozen=True)
class ArrivedEpisode:
    """What the decision needs of one episode. `reward` None: no verdict."""

    reward: float | None
    min_version: int
    max_version: int
    num_sampled_tokens: int


@dataclass(frozen=True)
class Arrival:
    """Statistics of a group's rewards and, unless it can be trained on, its outcome with the reason."""

    num_scored: int
    reward_mean: float | None
    reward_std: float | None  # Bessel; None with fewer than two
    min_version: int
    max_version: int
    outcome: GroupOutcome | None = None
    reason: str = ""


def judge_arrival(
    episodes: Sequence[ArrivedEpisode],
    *,
    size: int,
    newest_version: int,
    least_scored: int = 2,
    drops_zero_variance: bool = True,
) -> Arrival:
    """Judge a training group of `size` episodes; `newest_version` is the newest that exists.

    An algorithm that does not compare siblings can use a single scored episode, and rewards that are all equal.
    """
    rewards = [e.reward for e in episodes if e.reward is not None and math.isfinite(e.reward)]
    sampled = [e for e in episodes if e.num_sampled_tokens > 0]
    arrival = Arrival(
        num_scored=len(rewards),
        reward_mean=statistics.fmean(rewards) if rewards else None,
        reward_std=statistics.stdev(rewards) if len(rewards) > 1 else None,
        min_version=min((e.min_version for e in sampled), default=0),
        max_version=max((e.max_version for e in sampled), default=0),
    )
    outcome, reason = _drop(arrival, episodes, size, newest_version)
    if outcome is None and arrival.num_scored < least_scored:
        outcome = GroupOutcome.INFRASTRUCTURE_FAILED
        reason = f"only {arrival.num_scored} of {size} episodes have a reward"
    if outcome is None and drops_zero_variance and (arrival.reward_std or 0.0) <= ZERO_STD:
        outcome, reason = GroupOutcome.ZERO_VARIANCE, f"all {arrival.num_scored} rewards are equal"
    return Arrival(**{**vars(arrival), "outcome": outcome, "reason": reason})


def _drop(
    arrival: Arrival, episodes: Sequence[ArrivedEpisode], size: int, newest_version: int
) -> tuple[GroupOutcome | None, str]:
    if len(episodes) != size:
        return GroupOutcome.REJECTED, f"the report holds {len(episodes)} episodes, {size} were asked for"
    for index, episode in enumerate(episodes):
        if episode.reward is not None and not math.isfinite(episode.reward):
            return GroupOutcome.REJECTED, f"episode {index}: the reward is {episode.reward}"
    if arrival.min_version < 0 or arrival.max_version > newest_version:
        versions = f"{arrival.min_version} to {arrival.max_version}"
        return GroupOutcome.REJECTED, f"tokens of versions {versions}, but the newest is {newest_version}"
    return None, ""
