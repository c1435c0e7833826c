"""Batch assembly on the trainer's side: group files into sequences with their rewards, token weights and statistics."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from gpu_workers.algorithms.advantages import group_advantages
from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.contracts.groups import EpisodeTokens, GroupFileError, decode_group
from gpu_workers.contracts.runspec import GROUP_ADVANTAGES, Advantage, AlgorithmSpec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer.packing import PackedRow, TokenSequence


@dataclass
class BatchStatistics:
    """Counts of everything delivered, before groups are left out."""

    num_groups: int = 0
    num_zero_variance: int = 0
    rewards: list[float] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    num_tokens: int = 0

    def metrics(self) -> dict[str, float]:
        return {
            "reward_mean": float(np.mean(self.rewards)) if self.rewards else 0.0,
            "reward_std": float(np.std(self.rewards)) if self.rewards else 0.0,
            "zero_variance_share": self.num_zero_variance / max(self.num_groups, 1),
            "staleness_mean": float(np.mean(self.ages)) if self.ages else 0.0,
            "staleness_max": float(max(self.ages, default=0)),
            "num_tokens": float(self.num_tokens),
        }


@dataclass(frozen=True)
class Member:
    """Which episode of which group a trained sequence is."""

    group_id: str
    index: int


@dataclass(frozen=True)
class TrainBatch:
    """The E episodes that are trained on. Their sampled tokens lie one after the other in arrays of length S: those of
    episode e are start_E[e] to start_E[e + 1]."""

    sequences: list[TokenSequence]
    members: list[Member]
    reward_E: NDArray[np.float64]
    group_rewards: dict[str, list[float | None]]  # of every episode of the trained groups, None without a reward
    behaviour_S: NDArray[np.float32]  # μ
    weight_S: NDArray[np.float64]
    start_E: NDArray[np.int64]  # E + 1 entries
    skipped: dict[str, str]
    statistics: BatchStatistics

    @property
    def num_sampled_tokens(self) -> int:
        return len(self.behaviour_S)

    @property
    def episode_S(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.members)), np.diff(self.start_E))

    def positions(self, row: PackedRow) -> NDArray[np.int64]:
        """Where the row's T loss tokens lie in the arrays of length S (merged samples keep their own)."""
        places: NDArray[np.int64] = self.start_E[row.sequence_T] + row.offset_T
        return places

    def split(self, values_S: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """One array per episode."""
        return np.split(values_S, self.start_E[1:-1])


def assemble(
    groups: Sequence[TrainGroup],
    spec: AlgorithmSpec,
    *,
    max_tokens: int,
    context_length: int,
    vocab_size: int,
    drop_zero_variance: bool = True,
) -> TrainBatch:
    """Decode the groups; a group that cannot teach anything, or is malformed, is skipped with its reason."""
    statistics = BatchStatistics(num_groups=len(groups))
    skipped: dict[str, str] = {}
    episodes: list[EpisodeTokens] = []
    members: list[Member] = []
    group_rewards: dict[str, list[float | None]] = {}
    for group in groups:
        statistics.ages.append(group.age)
        try:
            found = decode_group(group.file)
            _check_fit(found, context_length, vocab_size)
        except (GroupFileError, SafetensorError, KeyError, ValueError) as error:
            skipped[group.group_id] = f"rejected: {error}"
            continue
        rewards = [episode.reward for episode in found]
        statistics.rewards += [reward for reward in rewards if reward is not None]
        statistics.num_tokens += sum(len(episode.tokens) for episode in found)
        no_use = _no_use(spec, rewards)
        statistics.num_zero_variance += no_use == "zero_variance"
        keeps_flat = spec.advantage not in GROUP_ADVANTAGES or not drop_zero_variance
        if no_use and not (no_use == "zero_variance" and keeps_flat):
            skipped[group.group_id] = no_use
            continue
        group_rewards[group.group_id] = rewards
        for index, episode in enumerate(found):
            if episode.reward is not None and episode.mask.any():
                episodes.append(episode)
                members.append(Member(group.group_id, index))
    counts = [int(episode.mask.sum()) for episode in episodes]
    weight_E = episode_token_weights(spec.aggregation, counts, max_tokens=max_tokens)
    sampled = [episode.logprobs[episode.mask == 1] for episode in episodes]
    return TrainBatch(
        sequences=[TokenSequence(episode.tokens, episode.mask) for episode in episodes],
        members=members,
        reward_E=np.array([episode.reward for episode in episodes], dtype=np.float64),
        group_rewards=group_rewards,
        behaviour_S=np.concatenate(sampled) if sampled else np.zeros(0, dtype=np.float32),
        weight_S=np.repeat(weight_E, counts),
        start_E=np.cumsum([0, *counts]).astype(np.int64),
        skipped=skipped,
        statistics=statistics,
    )


def _no_use(spec: AlgorithmSpec, rewards: Sequence[float | None]) -> str:
    """Why a group has no spread of reward to learn from; one episode is enough where siblings are not compared."""
    skip = group_advantages(Advantage.DR_GRPO, rewards).skip
    alone_is_enough = spec.advantage not in GROUP_ADVANTAGES and any(reward is not None for reward in rewards)
    return "" if skip == "too_few_scored" and alone_is_enough else skip


def _check_fit(members: Sequence[EpisodeTokens], context_length: int, vocab_size: int) -> None:
    for index, episode in enumerate(members):
        if len(episode.tokens) == 0 or episode.mask[0]:
            raise GroupFileError(f"episode {index}: must start with a prompt token (mask 0)")
        if len(episode.tokens) > context_length:
            raise GroupFileError(
                f"episode {index}: {len(episode.tokens)} tokens exceed the model's context of {context_length}"
            )
        if (largest := int(episode.tokens.max())) >= vocab_size:
            raise GroupFileError(f"episode {index}: token {largest} is not in the model's vocabulary of {vocab_size}")
