"""Attention of a batch over shared runs, branches and new tokens: computed apart, merged by log-sum-exp.

Each part gives its own softmax average and the log of its normaliser, so merging is exact (flash-decoding, Dao et al.
2023). The query heads of one key/value head are folded into the query length: no repeated keys.
"""

import torch

from gpu_workers.engines.embedded.batch import Batch, Level
from gpu_workers.engines.embedded.branches import BranchPool
from gpu_workers.engines.embedded.prefix_tree import Run

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
Part = tuple[torch.Tensor, torch.Tensor]  # averages [N, KVH, R, D], log-normalisers [N, KVH, R]


class BatchAttention:
    """Attention for one Batch; the masks are shared by its layers."""

    def __init__(self, batch: Batch, branches: BranchPool) -> None:
        self.batch, self.branches = batch, branches
        self.num_rows = len(batch.tokens)
        if batch.num_decode:
            mask = branches.mask_table[batch.branch_positions, : batch.branch_length]
            self.mask = mask[:, None, None, :]
            self.slots = branches.slots[: batch.num_decode]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [N, KVH, R, D], k and v [N, KVH, D] -> [N, KVH * R * D]; stores k and v where they belong."""
        parts = self._decode(layer, q, k, v) + self._prefill(layer, q, k, v)
        averages = parts[0][0] if len(parts) == 1 else torch.cat([part[0] for part in parts])
        if self.batch.levels:
            logs = parts[0][1] if len(parts) == 1 else torch.cat([part[1] for part in parts])
            averages = self._merge(layer, q, averages, logs)
        return averages.reshape(self.num_rows, -1)

    def _decode(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Part]:
        num = self.batch.num_decode
        if not num:
            return []
        keys, values = self.branches.layers[layer]
        keys[self.slots, :, self.batch.branch_positions] = k[:num]
        values[self.slots, :, self.batch.branch_positions] = v[:num]
        length = self.batch.branch_length
        return [_flash(q[:num], keys[:num, :, :length], values[:num, :, :length], attn_mask=self.mask)]

    def _prefill(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Part]:
        parts = []
        for span in self.batch.prefills:
            rows = slice(span.start, span.stop)
            keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)  # [KVH, n, D]
            span.kv[layer, 0], span.kv[layer, 1] = keys, values
            queries = q[rows].permute(1, 2, 0, 3)  # [KVH, R, n, D]
            average, log = _flash(
                queries, keys.unsqueeze(1).expand_as(queries), values.unsqueeze(1).expand_as(queries), 0.0, True
            )
            parts.append((average.permute(2, 0, 1, 3), log.permute(2, 0, 1)))
        return parts

    def _merge(self, layer: int, q: torch.Tensor, averages: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
        """Combine each row's own part with the parts over its runs, weights in float32."""
        parts = [(averages, logs), *(self._level(layer, level, q) for level in self.batch.levels)]
        weights = torch.stack([log for _, log in parts]).softmax(0).unsqueeze(-1)
        merged = averages.float() * weights[0]
        for index, (average, _) in enumerate(parts[1:], start=1):
            merged.addcmul_(average.float(), weights[index])
        return merged.to(q.dtype)

    def _level(self, layer: int, level: Level, q: torch.Tensor) -> Part:
        """This level's part for all rows; rows without a run get the log of nothing."""
        if level.rows is not None:
            q = q.index_select(0, level.rows)
        num, kv_heads, per_kv, dim = q.shape
        queries = q.transpose(0, 1).reshape(1, kv_heads, num * per_kv, dim)
        found = [
            _over_run(layer, run, queries[:, :, start * per_kv : stop * per_kv]) for run, start, stop in level.spans
        ]
        averages = found[0][0] if len(found) == 1 else torch.cat([average for average, _ in found], dim=2)
        logs = found[0][1] if len(found) == 1 else torch.cat([log for _, log in found], dim=2)
        averages = averages.view(kv_heads, num, per_kv, dim).transpose(0, 1)
        logs = logs.view(kv_heads, num, per_kv).transpose(0, 1)
        if level.positions is None:
            return averages, logs
        averages, logs = averages.index_select(0, level.positions), logs.index_select(0, level.positions)
        if level.absent is not None:
            logs.masked_fill_(level.absent[:, None, None], float("-inf"))
        return averages, logs


def _over_run(layer: int, run: Run, queries: torch.Tensor) -> Part:
    keys, values = run.layers[layer]
    return _flash(queries, keys, values)
