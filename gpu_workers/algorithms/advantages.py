"""Group advantages: how much better an episode did than its siblings of the same task. Those of tokens: `returns`.

Sources: GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3), Dr. GRPO (2503.20783, section 3.2), RLOO (2402.14740, eq. 5).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_workers.contracts.runspec import Advantage

ZERO_VARIANCE_STD = 1e-8
STD_EPSILON = 1e-6


@dataclass(frozen=True)
class GroupAdvantages:
    """One advantage per episode, float64; NaN where it has no reward. `skip` says why nothing can be learned."""

    values_E: NDArray[np.float64]
    num_scored: int
    skip: str = ""  # "" | zero_variance | too_few_scored

    @property
    def scored_E(self) -> NDArray[np.bool_]:
        return np.isfinite(self.values_E)


def group_advantages(kind: Advantage, rewards_E: Sequence[float | None]) -> GroupAdvantages:
    """Advantages of one group. An episode without a reward is outside the group's statistics.

    Fewer than two scored episodes, or a standard deviation ≤ 1e-8, give advantage 0 and a `skip` reason.
    Raises ValueError for a NaN or infinite reward (a missing reward is None).
    """
    values = np.full(len(rewards_E), np.nan, dtype=np.float64)
    scored = np.array([reward is not None for reward in rewards_E], dtype=bool)
    rewards = np.array([reward for reward in rewards_E if reward is not None], dtype=np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError(f"rewards {list(rewards_E)} hold a NaN or infinity; give None for an episode without a reward")
    if len(rewards) < 2:
        values[scored] = 0.0
        return GroupAdvantages(values, len(rewards), "too_few_scored")
    if rewards.std(ddof=1) <= ZERO_VARIANCE_STD:
        values[scored] = 0.0
        return GroupAdvantages(values, len(rewards), "zero_variance")
    values[scored] = _FORMULAS[kind](rewards)
    return GroupAdvantages(values, len(rewards))


def _grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + STD_EPSILON)


def _dr_grpo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    return rewards - rewards.mean()


def _rloo(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    mean_of_others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - mean_of_others


_FORMULAS = {Advantage.GRPO: _grpo, Advantage.DR_GRPO: _dr_grpo, Advantage.RLOO: _rloo}
