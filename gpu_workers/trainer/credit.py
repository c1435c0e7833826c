"""Credit: one advantage, and for a value function one return, for each of a batch's S sampled tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_workers.algorithms.advantages import group_advantages
from gpu_workers.algorithms.returns import gae, rewards_to_go, token_rewards, whiten
from gpu_workers.contracts.runspec import GROUP_ADVANTAGES, Advantage, AlgorithmSpec
from gpu_workers.trainer.batches import TrainBatch

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Credit:
    """`return_S` is what the value function is fitted to; None without one."""

    advantage_S: Floats
    return_S: Floats | None = None


def assign_credit(
    spec: AlgorithmSpec, batch: TrainBatch, *, penalty_S: Floats | None = None, value_S: Floats | None = None
) -> Credit:
    """Advantages as `spec.advantage` says. `penalty_S` (β·k1) is taken off the rewards, `value_S` is V_old for GAE."""
    if not batch.members:
        return Credit(np.zeros(0))
    if spec.advantage in GROUP_ADVANTAGES:
        return Credit(np.repeat(_group_advantages(spec, batch, penalty_S), np.diff(batch.start_E)))
    penalties = batch.split(np.zeros(batch.num_sampled_tokens) if penalty_S is None else penalty_S)
    rewards = [
        token_rewards(reward, len(penalty), penalty)
        for reward, penalty in zip(batch.reward_E.tolist(), penalties, strict=True)
    ]
    if spec.advantage is Advantage.REINFORCE_PP:
        return Credit(np.concatenate(whiten([rewards_to_go(r) for r in rewards])))
    if value_S is None:
        raise ValueError("advantage gae needs the values of the policy before the step")
    pairs = [
        gae(reward, value, gamma=spec.gamma, lam=spec.gae_lambda)
        for reward, value in zip(rewards, batch.split(value_S), strict=True)
    ]
    advantages = whiten([advantage for advantage, _ in pairs])
    return Credit(np.concatenate(advantages), np.concatenate([returns for _, returns in pairs]))


def _group_advantages(spec: AlgorithmSpec, batch: TrainBatch, penalty_S: Floats | None) -> Floats:
    rewards = {group: list(values) for group, values in batch.group_rewards.items()}
    if penalty_S is not None:
        for member, penalty in zip(batch.members, batch.split(penalty_S), strict=True):
            before = rewards[member.group_id][member.index]
            rewards[member.group_id][member.index] = None if before is None else before - float(penalty.sum())
    values = {group: group_advantages(spec.advantage, found).values_E for group, found in rewards.items()}
    return np.array([values[member.group_id][member.index] for member in batch.members], dtype=np.float64)
