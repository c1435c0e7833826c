"""The forward pass whose rows do not depend on the batch: float32, products of one fixed shape, attention row by row.

Matrix libraries choose the order of a sum by the shape of a product. Here every product has exactly `block_rows` rows,
filled up with zeros, and a token's attention is one kernel call over its keys in order, whose shape is its position.
So keys, values and logits of a token follow from the tokens before it alone, bit by bit: whatever else is in the batch,
cached, or computed again. On one thread, for the split of a sum over threads follows the size of the batch.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from gpu_workers.engines.embedded.batch import Batch
from gpu_workers.engines.embedded.branches import BranchPool
from gpu_workers.engines.embedded.config import EngineConfigError, LlamaConfig
from gpu_workers.engines.embedded.forward import RotaryTable, rms_norm, rotate
from gpu_workers.engines.embedded.linear import PackedLinear
from gpu_workers.engines.embedded.lora import Adapter, AdapterRows
from gpu_workers.engines.embedded.prefix_tree import Run
from gpu_workers.engines.embedded.weights import LlamaWeights

DEFAULT_SEED = 42  # SGLang's, for requests without one
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def in_blocks(function: Callable[[torch.Tensor], torch.Tensor], x_ND: torch.Tensor, block_rows: int) -> torch.Tensor:
    """function(x) by blocks of exactly `block_rows` rows."""
    num = len(x_ND)
    return torch.cat([function(block) for block in _padded(x_ND, block_rows).split(block_rows)])[:num]


def forward(
    config: LlamaConfig,
    weights: LlamaWeights,
    rotary: RotaryTable,
    branches: BranchPool,
    batch: Batch,
    block_rows: int,
) -> torch.Tensor:
    """Final hidden states (after the last norm) of batch.wanted_rows."""
    attention = _RowAttention(config, batch, branches)
    tokens, positions = _padded(batch.tokens, block_rows), _padded(batch.positions, block_rows)
    x = weights.embedding.index_select(0, tokens)
    cos = rotary.cos.index_select(0, positions).split(block_rows)
    sin = rotary.sin.index_select(0, positions).split(block_rows)
    adapters = [list(_adapters_of_block(batch, start, block_rows)) for start in range(0, len(x), block_rows)]
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    for index, layer in enumerate(weights.layers):
        blocks = []
        for number, block in enumerate(x.split(block_rows)):
            hidden = rms_norm(block, layer.input_norm, config.rms_eps)
            qkv = _linear(layer.qkv, "qkv", index, hidden, adapters[number]).view(block_rows, heads + 2 * kv_heads, dim)
            qk = rotate(qkv[:, : heads + kv_heads], cos[number], sin[number])
            blocks.append((qk[:, :heads], qk[:, heads:], qkv[:, heads + kv_heads :]))
        q, k, v = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        context = attention(index, q.view(len(x), config.queries_per_kv, kv_heads, dim), k, v).split(block_rows)
        after = []
        for number, block in enumerate(x.split(block_rows)):
            block = block + _linear(layer.output, "output", index, context[number], adapters[number])
            hidden = rms_norm(block, layer.post_norm, config.rms_eps)
            gate_up = _linear(layer.gate_up, "gate_up", index, hidden, adapters[number])
            gate, up = gate_up.split(config.intermediate_size, dim=-1)
            after.append(block + _linear(layer.down, "down", index, F.silu(gate).mul_(up), adapters[number]))
        x = torch.cat(after)
    return in_blocks(lambda rows: rms_norm(rows, weights.norm, config.rms_eps), x[batch.wanted_rows], block_rows)


class _RowAttention:
    """Every token by itself over all keys before it, copied in order to one place: [T, KVH, D], T its position + 1."""

    def __init__(self, config: LlamaConfig, batch: Batch, branches: BranchPool) -> None:
        self.batch, self.branches = batch, branches
        longest = int(batch.positions.max()) + 1
        self.keys = torch.empty(longest, config.num_kv_heads, config.head_dim)
        self.values = torch.empty_like(self.keys)
        self.branch_positions = batch.branch_positions.tolist()
        self._held: tuple[int, Run | None] = (-1, None)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [N, R, KVH, D], k and v [N, KVH, D] -> [N, R * KVH * D]; stores k and v where they belong."""
        out = torch.zeros(len(q), q.shape[1] * q.shape[2] * q.shape[3])
        for row in range(self.batch.num_decode):
            start, place = self._gather(layer, self.batch.paths[row]), self.branch_positions[row]
            branch = self.branches.storage[layer, :, row]
            branch[0, place], branch[1, place] = k[row], v[row]
            stop = start + place + 1
            self.keys[start:stop], self.values[start:stop] = branch[0, : place + 1], branch[1, : place + 1]
            out[row] = self._attend(q[row], stop)
        for span, path in zip(self.batch.prefills, self.batch.paths[self.batch.num_decode :], strict=True):
            rows, start = slice(span.start, span.stop), self._gather(layer, path)
            span.kv[layer, 0], span.kv[layer, 1] = k[rows].transpose(0, 1), v[rows].transpose(0, 1)
            stop = start + span.stop - span.start
            self.keys[start:stop], self.values[start:stop] = k[rows], v[rows]
            for row in range(span.start, span.stop):
                out[row] = self._attend(q[row], start + row - span.start + 1)
        return out

    def _gather(self, layer: int, path: list[Run]) -> int:
        """Bring the keys and values of a path to the start of the place; rows of a group share them. Their number."""
        leaf = path[-1] if path else None
        if self._held != (layer, leaf):
            start = 0
            for run in path:
                keys, values = run.layers[layer]
                stop = start + len(run.tokens)
                self.keys[start:stop], self.values[start:stop] = keys[0].transpose(0, 1), values[0].transpose(0, 1)
                start = stop
            self._held = (layer, leaf)
        return leaf.stop if leaf else 0

    def _attend(self, q: torch.Tensor, length: int) -> torch.Tensor:
        """q [R, KVH, D] over the first `length` keys -> [R * KVH * D]."""
        queries = q.transpose(0, 1).contiguous().unsqueeze(0)
        keys, values = self.keys[:length].transpose(0, 1), self.values[:length].transpose(0, 1)
        averages, _ = _flash(queries, keys.unsqueeze(0), values.unsqueeze(0))
        return averages[0].transpose(0, 1).reshape(-1)


def check_rows(config: LlamaConfig, weights: LlamaWeights, block_rows: int) -> None:
    """Raises EngineConfigError where a row's result depends on its place in a block on this machine."""
    layer = weights.layers[0]
    functions: list[tuple[int, Callable[[torch.Tensor], torch.Tensor]]] = [
        (config.hidden_size, lambda x: rms_norm(x, layer.input_norm, config.rms_eps)),
        (config.hidden_size, layer.qkv),
        (layer.output.in_features, layer.output),
        (config.hidden_size, lambda x: _gated(layer.gate_up(x), config.intermediate_size)),
        (config.intermediate_size, layer.down),
        (config.hidden_size, weights.head),
    ]
    if not all(_keeps_rows(function, size, block_rows) for size, function in functions):
        raise EngineConfigError(
            "--deterministic: this machine's matrix library gives a row other bits in another place of the batch; "
            "give --deterministic-rows 1, which is slower"
        )


def keeps_rows_of(adapter: Adapter, block_rows: int) -> bool:
    """Whether an adapter's own products give a row the same bits in every place."""
    return all(
        _keeps_rows(lambda x, low=low: low.up(low.down(x)), low.down.in_features, block_rows)  # type: ignore[misc]
        for low in adapter.layers[0].values()
    )


def _keeps_rows(function: Callable[[torch.Tensor], torch.Tensor], size: int, block_rows: int) -> bool:
    x = torch.randn(block_rows, size, generator=torch.Generator().manual_seed(0))
    expected = function(x)
    shifted = (function(x.roll(shift, 0)).roll(-shift, 0) for shift in range(1, block_rows))
    return all(torch.equal(expected, result) for result in shifted)


def _gated(gate_up: torch.Tensor, size: int) -> torch.Tensor:
    gate, up = gate_up.split(size, dim=-1)
    return F.silu(gate).mul_(up)


def _linear(base: PackedLinear, name: str, layer: int, x_BD: torch.Tensor, adapters: list[AdapterRows]) -> torch.Tensor:
    """As `linear_with_adapters`; an adapter's product is of the whole block too, added to its own rows only."""
    out = base(x_BD)
    for part in adapters:
        low_rank = part.adapter.layers[layer].get(name)
        if low_rank is not None:
            delta = low_rank.up(low_rank.down(x_BD))
            assert part.index is not None
            out.index_add_(0, part.index, delta.index_select(0, part.index))
    return out


def _adapters_of_block(batch: Batch, start: int, block_rows: int) -> Iterator[AdapterRows]:
    for part in batch.adapters:
        rows = torch.arange(len(batch.tokens)) if part.index is None else part.index
        inside = rows[(rows >= start) & (rows < start + block_rows)]
        if len(inside):
            yield AdapterRows(part.adapter, inside - start)


def _padded(x: torch.Tensor, block_rows: int) -> torch.Tensor:
    """Zeros below, to a multiple of `block_rows` rows."""
    missing = -len(x) % block_rows
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x
