"""Sampling from the policy under training, in the test's own process: no engine between a loss and what it does."""

from collections.abc import Sequence

import numpy as np
import torch

from gpu_workers.contracts.groups import EpisodeTokens
from gpu_workers.models import tiny
from gpu_workers.trainer.llama import PackedLlama
from gpu_workers.trainer.packing import TokenSequence, pack


def next_logprobs(model: PackedLlama, prefixes: Sequence[list[int]]) -> torch.Tensor:
    """log p of every word after each prefix, [B, V]; prefixes that agree are computed once."""
    sequences = [
        TokenSequence(np.array([*ids, 0], dtype=np.int32), np.array([0] * len(ids) + [1], dtype=np.uint8))
        for ids in prefixes
    ]
    (row,) = pack(sequences, max_row_tokens=1 << 20)
    with torch.no_grad():
        hidden = model.hidden(row)[torch.from_numpy(row.source_U[row.edge_T])]
        logprobs = (hidden @ model.head.T).float().log_softmax(-1)
    found = torch.empty_like(logprobs)
    found[torch.from_numpy(row.sequence_T)] = logprobs
    return found


def sample(
    model: PackedLlama, prompts: Sequence[list[int]], *, max_new: int, generator: torch.Generator | None
) -> list[tuple[list[int], list[float]]]:
    """Completion and log-probs of each prompt at temperature 1; greedy without a generator."""
    made: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    open_rows = list(range(len(prompts)))
    for _ in range(max_new):
        logprobs = next_logprobs(model, [prompts[i] + made[i][0] for i in open_rows])
        if generator is None:
            chosen = logprobs.argmax(-1)
        else:
            chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
        for place, row in enumerate(open_rows):
            made[row][0].append(int(chosen[place]))
            made[row][1].append(float(logprobs[place, chosen[place]]))
        open_rows = [row for row in open_rows if made[row][0][-1] != tiny.EOS_ID]
        if not open_rows:
            break
    return made


def episode(prompt: list[int], completion: list[int], logprobs: list[float], reward: float, version: int):
    """The episode as a rollout worker would store it."""
    mask = np.array([0] * len(prompt) + [1] * len(completion), dtype=np.uint8)
    behaviour = np.zeros(len(mask), dtype=np.float32)
    behaviour[mask == 1] = logprobs
    versions = np.where(mask == 1, version, -1).astype(np.int32)
    return EpisodeTokens(np.array(prompt + completion, dtype=np.int32), mask, behaviour, versions, reward)
