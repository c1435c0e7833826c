"""Advantages that belong to tokens: GAE over a value function, REINFORCE++ returns, and their whitening over a batch.

All float64, over the m=1 tokens of one episode in order: tokens of prompts and observations are not steps.
Sources: GAE (arXiv 1506.02438, eq. 16); REINFORCE++ (2501.03262, section 3).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STD_EPSILON = 1e-8


def token_rewards(reward: float, num_tokens: int, penalty_T: Floats | None = None) -> Floats:
    """The episode's reward at its last token, less a penalty at every token (β·k1)."""
    rewards = np.zeros(num_tokens) if penalty_T is None else -np.asarray(penalty_T, dtype=np.float64)
    if num_tokens:
        rewards[-1] += reward
    return rewards


def gae(rewards_T: Floats, values_T: Floats, *, gamma: float, lam: float) -> tuple[Floats, Floats]:
    """Advantages A_t = Σ (γλ)^k δ_{t+k}, δ_t = r_t + γ·V_{t+1} − V_t with V = 0 after the last, and returns A + V."""
    rewards, values = np.asarray(rewards_T, dtype=np.float64), np.asarray(values_T, dtype=np.float64)
    if rewards.shape != values.shape:
        raise ValueError(f"{rewards.shape} rewards and {values.shape} values: one of each per token is needed")
    advantages = np.zeros_like(rewards)
    following, next_value = 0.0, 0.0
    for step in range(len(rewards) - 1, -1, -1):
        delta = rewards[step] + gamma * next_value - values[step]
        following = delta + gamma * lam * following
        advantages[step], next_value = following, values[step]
    return advantages, advantages + values


def rewards_to_go(rewards_T: Floats) -> Floats:
    """REINFORCE++: the undiscounted sum of this and all later rewards."""
    return np.cumsum(rewards_T[::-1])[::-1].copy()


def whiten(values: Sequence[Floats]) -> list[Floats]:
    """(x − mean) / (std + 1e-8) over all tokens of the batch, Bessel std; zeros where nothing varies."""
    joined = np.concatenate([np.asarray(v, dtype=np.float64) for v in values]) if values else np.zeros(0)
    std = joined.std(ddof=1) if len(joined) > 1 else 0.0
    if std <= STD_EPSILON:
        return [np.zeros(len(v)) for v in values]
    mean = joined.mean()
    return [(v - mean) / (std + STD_EPSILON) for v in values]
