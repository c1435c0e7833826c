"""Attention of a batch over shared runs, branches and new tokens: computed apart, merged by log-sum-exp.

Each part gives its own softmax average and the log of its normaliser, so merging is exact (flash-decoding, Dao et al.
2023). The query heads of one key/value head are folded into the query length: no repeated keys.
"""

import torch

from gpu_workers.engines.embedded.batch import Batch, Level
from gpu_workers.engines.embedded.branches import BRANCH_TOKENS, BranchPool

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
Part = tuple[torch.Tensor, torch.Tensor]  # averages [N, R, KVH, D], log-normalisers [N, R, KVH]


class BatchAttention:
    """Attention for one Batch; the masks are shared by its layers."""

    def __init__(self, batch: Batch, branches: BranchPool) -> None:
        self.batch, self.branches = batch, branches
        self.num_rows = len(batch.tokens)
        if batch.num_decode:
            mask = branches.mask_table[batch.branch_positions, : batch.branch_length]
            self.mask = mask[:, None, None, :]
            self.places = branches.slots[: batch.num_decode] * BRANCH_TOKENS + batch.branch_positions

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [N, R, KVH, D], k and v [N, KVH, D] -> [N, R * KVH * D]; stores k and v where they belong."""
        parts = self._decode(layer, q, k, v) + self._prefill(layer, q, k, v)
        averages = parts[0][0].float() if len(parts) == 1 else torch.cat([part[0].float() for part in parts])
        if self.batch.levels:
            logs = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts])
            for level in self.batch.levels:
                averages, logs = _merge(layer, level, q, averages, logs)
        return averages.to(q.dtype).reshape(self.num_rows, -1)

    def _decode(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Part]:
        num = self.batch.num_decode
        if not num:
            return []
        keys, values = self.branches.write[layer]
        keys.index_copy_(0, self.places, k[:num])
        values.index_copy_(0, self.places, v[:num])
        keys, values = self.branches.read[layer]
        length = self.batch.branch_length
        averages, logs = _flash(
            q[:num].transpose(1, 2), keys[:num, :, :length], values[:num, :, :length], attn_mask=self.mask
        )
        return [(averages.transpose(1, 2), logs.transpose(1, 2))]

    def _prefill(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Part]:
        parts = []
        for span in self.batch.prefills:
            rows = slice(span.start, span.stop)
            keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)  # [KVH, n, D]
            span.kv[layer, 0], span.kv[layer, 1] = keys, values
            queries = q[rows].permute(2, 1, 0, 3)  # [KVH, R, n, D]
            averages, logs = _flash(
                queries, keys.unsqueeze(1).expand_as(queries), values.unsqueeze(1).expand_as(queries), 0.0, True
            )
            parts.append((averages.permute(2, 1, 0, 3), logs.permute(2, 1, 0)))
        return parts


def _merge(layer: int, level: Level, q: torch.Tensor, averages: torch.Tensor, logs: torch.Tensor) -> Part:
    """Bring in one level: the weight of its part is a sigmoid of the difference of the log-normalisers. Float32."""
    if level.rows is None:
        others, other_logs = _over_runs(layer, level, q)
        weights = torch.sigmoid(other_logs - logs).unsqueeze(-1)
        return torch.lerp(averages, others, weights), torch.logaddexp(logs, other_logs)
    others, other_logs = _over_runs(layer, level, q.index_select(0, level.rows))
    own, own_logs = averages.index_select(0, level.rows), logs.index_select(0, level.rows)
    weights = torch.sigmoid(other_logs - own_logs).unsqueeze(-1)
    averages.index_copy_(0, level.rows, torch.lerp(own, others, weights))
    logs.index_copy_(0, level.rows, torch.logaddexp(own_logs, other_logs))
    return averages, logs


def _over_runs(layer: int, level: Level, q: torch.Tensor) -> Part:
    """q [n, R, KVH, D] in the level's order, each range over its run."""
    num, per_kv, kv_heads, dim = q.shape
    queries = q.reshape(1, num * per_kv, kv_heads, dim).transpose(1, 2)
    averages, logs = [], []
    for run, start, stop in level.spans:
        keys, values = run.layers[layer]
        average, log = _flash(queries[:, :, start * per_kv : stop * per_kv], keys, values)
        averages.append(average.transpose(1, 2))
        logs.append(log.transpose(1, 2))
    joined = averages[0] if len(averages) == 1 else torch.cat(averages, dim=1)
    joined_logs = logs[0] if len(logs) == 1 else torch.cat(logs, dim=1)
    return joined.float().view(num, per_kv, kv_heads, dim), joined_logs.reshape(num, per_kv, kv_heads)
