"""Batch assembly on the trainer's side: group files into sequences, advantages and per-token loss inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from gpu_workers.algorithms.advantages import group_advantages
from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.contracts.groups import EpisodeTokens, GroupFileError, decode_group
from gpu_workers.contracts.runspec import AlgorithmSpec
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
class TrainBatch:
    """Episodes that are trained on, E of them, with one advantage and one token weight each."""

    sequences: list[TokenSequence]
    group_ids: list[str]  # of each episode
    behaviour: list[NDArray[np.float32]]  # μ of each episode's sampled tokens
    advantage_E: NDArray[np.float64]
    weight_E: NDArray[np.float64]
    skipped: dict[str, str]
    statistics: BatchStatistics

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(values) for values in self.behaviour)


def assemble(groups: Sequence[TrainGroup], spec: AlgorithmSpec, *, max_tokens: int, context_length: int) -> TrainBatch:
    """Decode the groups; a group that cannot teach anything, or is malformed, is skipped with its reason."""
    statistics = BatchStatistics(num_groups=len(groups))
    skipped: dict[str, str] = {}
    episodes: list[EpisodeTokens] = []
    group_ids: list[str] = []
    advantages: list[float] = []
    for group in groups:
        statistics.ages.append(group.age)
        try:
            members = decode_group(group.file)
            _check_lengths(members, context_length)
        except (GroupFileError, SafetensorError, KeyError, ValueError) as error:
            skipped[group.group_id] = f"rejected: {error}"
            continue
        result = group_advantages(spec.advantage, [e.reward for e in members])
        statistics.rewards += [e.reward for e in members if e.reward is not None]
        statistics.num_tokens += sum(len(e.tokens) for e in members)
        statistics.num_zero_variance += result.skip == "zero_variance"
        if result.skip:
            skipped[group.group_id] = result.skip
            continue
        for index in np.flatnonzero(result.scored_E):
            if members[index].mask.any():
                episodes.append(members[index])
                group_ids.append(group.group_id)
                advantages.append(float(result.values_E[index]))
    counts = [int(e.mask.sum()) for e in episodes]
    return TrainBatch(
        sequences=[TokenSequence(e.tokens, e.mask) for e in episodes],
        group_ids=group_ids,
        behaviour=[e.logprobs[e.mask == 1] for e in episodes],
        advantage_E=np.array(advantages, dtype=np.float64),
        weight_E=episode_token_weights(spec.aggregation, counts, max_tokens=max_tokens),
        skipped=skipped,
        statistics=statistics,
    )


def _check_lengths(members: Sequence[EpisodeTokens], context_length: int) -> None:
    for index, episode in enumerate(members):
        if len(episode.tokens) == 0 or episode.mask[0]:
            raise GroupFileError(f"episode {index}: must start with a prompt token (mask 0)")
        if len(episode.tokens) > context_length:
            raise GroupFileError(
                f"episode {index}: {len(episode.tokens)} tokens exceed the model's context of {context_length}"
            )


@dataclass(frozen=True)
class RowTargets:
    """Loss inputs of one packed row's T tokens."""

    edge_T: Tensor
    episode_T: Tensor
    behaviour_T: Tensor
    advantage_T: Tensor
    weight_T: Tensor


def row_targets(row: PackedRow, batch: TrainBatch) -> RowTargets:
    """Gather each loss token's own behaviour log-prob, advantage and weight (merged samples keep theirs)."""
    behaviour = [batch.behaviour[s][o] for s, o in zip(row.sequence_T, row.offset_T, strict=True)]
    return RowTargets(
        edge_T=torch.from_numpy(row.edge_T),
        episode_T=torch.from_numpy(row.sequence_T),
        behaviour_T=torch.tensor(np.array(behaviour, dtype=np.float32)),
        advantage_T=torch.from_numpy(batch.advantage_E[row.sequence_T]),
        weight_T=torch.from_numpy(batch.weight_E[row.sequence_T]),
    )
