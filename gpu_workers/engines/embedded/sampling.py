"""Draws the next token of every row and its log-prob, in float32, from logits [N, V]."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# The vocabulary is summed in blocks first, so that drawing needs a cumulative sum over few numbers only.
_BLOCK = 256
# So many rows' float32 logits stay in the second-level cache through all passes over them.
CHUNK_ROWS = 8


@dataclass(frozen=True)
class RowSampling:
    """How one row is sampled. temperature 0 is greedy; `uniform` in [0, 1) is this token's random number."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1: all
    min_p: float = 0.0
    uniform: float = 0.0

    @property
    def is_truncated(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)


@dataclass(frozen=True)
class Sampled:
    """Chosen ids and their log-probs: temperature-scaled (greedy: temperature 1), before top-p, top-k and min-p."""

    ids: list[int]
    logprobs: list[float]


def sample(logits_NV: torch.Tensor, rows: Sequence[RowSampling], chunk_rows: int = CHUNK_ROWS) -> Sampled:
    """One token a row. With chunks of one row no row's bits depend on the others."""
    ids: list[int] = []
    logprobs: list[float] = []
    for start in range(0, len(rows), chunk_rows):
        chunk = _sample_chunk(logits_NV[start : start + chunk_rows], rows[start : start + chunk_rows])
        ids += chunk.ids
        logprobs += chunk.logprobs
    return Sampled(ids, logprobs)


def _sample_chunk(logits_NV: torch.Tensor, rows: Sequence[RowSampling]) -> Sampled:
    weights = logits_NV.to(torch.float32, copy=True)
    temperatures = [row.temperature if row.temperature > 0 else 1.0 for row in rows]
    if any(t != 1.0 for t in temperatures):
        weights /= torch.tensor(temperatures).unsqueeze(1)
    top = weights.amax(-1, keepdim=True)
    weights.sub_(top).exp_()
    blocks = _block_sums(weights)
    totals = blocks.sum(-1, dtype=torch.float64)
    ids = _draw(weights, blocks, totals, torch.tensor([row.uniform for row in rows], dtype=torch.float64))
    for index, row in enumerate(rows):
        if row.temperature <= 0:
            ids[index] = logits_NV[index].argmax()
        elif row.is_truncated:
            ids[index] = _draw_truncated(weights[index] / totals[index].float(), row)
    # From the logits again rather than from the weights: exact where a weight is too small for float32.
    chosen = logits_NV.gather(1, ids.unsqueeze(1)).squeeze(1).float() / torch.tensor(temperatures)
    logprobs = (chosen - top.squeeze(1)).double() - totals.log()
    return Sampled(ids.tolist(), logprobs.tolist())


def token_logprobs(logits_NV: torch.Tensor, ids_N: torch.Tensor, chunk_rows: int = 0) -> list[float]:
    """Log-probs at temperature 1 of given tokens; `chunk_rows` at a time, 0: all at once."""
    logits = logits_NV.float()
    chosen = logits.gather(1, ids_N.unsqueeze(1)).squeeze(1)
    totals = torch.cat([part.logsumexp(-1) for part in logits.split(chunk_rows or max(len(logits), 1))])
    return (chosen - totals).tolist()


def _block_sums(weights_NV: torch.Tensor) -> torch.Tensor:
    size = weights_NV.shape[1]
    whole = size - size % _BLOCK
    sums = weights_NV[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1) if whole else weights_NV[:, :0]
    return sums if whole == size else torch.cat([sums, weights_NV[:, whole:].sum(-1, keepdim=True)], dim=1)


def _draw(weights: torch.Tensor, blocks: torch.Tensor, totals: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution: find the block, then the token in it."""
    ends = blocks.double().cumsum(-1)
    targets = (uniforms * totals).unsqueeze(1)
    # The target may pass the last end by a rounding error: stay inside, on a block of positive weight.
    last_block = (blocks > 0).long().mul(torch.arange(blocks.shape[1])).amax(-1, keepdim=True)
    block = torch.minimum(torch.searchsorted(ends, targets, right=True), last_block)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    columns = block * _BLOCK + torch.arange(_BLOCK)
    inside = weights.gather(1, columns.clamp(max=weights.shape[1] - 1)).double()
    inside = torch.where(columns < weights.shape[1], inside, 0.0)
    position = torch.searchsorted(inside.cumsum(-1), targets - before, right=True)
    # Rounding may run past the block's last positive weight: take that one.
    last_positive = (inside > 0).long().mul(torch.arange(_BLOCK)).amax(-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(position, last_positive)).squeeze(1)


def _draw_truncated(probabilities_V: torch.Tensor, row: RowSampling) -> torch.Tensor:
    """Sample one row under top-k, then top-p, then min-p."""
    values, order = probabilities_V.sort(descending=True)
    if row.top_k > 0:
        values = values[: row.top_k]
    keep = values.cumsum(-1) - values < row.top_p  # the token that crosses top_p is kept
    keep &= (values >= row.min_p * values[0]) & (values > 0)  # none that a grammar has taken away
    keep[0] = True  # whatever underflows: a top_p that is 0 in float32 keeps one too
    values = values[keep]
    index = torch.searchsorted(values.double().cumsum(-1), row.uniform * values.double().sum(), right=True)
    return order[: len(keep)][keep][index.clamp(max=len(values) - 1)]
