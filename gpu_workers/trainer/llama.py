"""The Llama forward pass over packed rows: exact Hugging Face parameters, fused LoRA linear layers, tree attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gpu_workers.trainer.kernels import (
    AttentionBlock,
    LoraLinear,
    RmsNorm,
    Rotate,
    SwiGlu,
    TokenLogprobs,
    TreeAttention,
)
from gpu_workers.trainer.packing import PackedRow, attention_mask

BLOCK_QUERIES = 64


@dataclass(frozen=True)
class LlamaShape:
    """Sizes read from config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_epsilon: float
    rope_theta: float
    context_length: int
    tied_head: bool


class LoraGroup(nn.Module):
    """J linear layers with a common input: frozen weights side by side, one LoRA pair each in float32."""

    def __init__(
        self, names: Sequence[str], outputs: Sequence[int], inputs: int, rank: int, scale: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.names, self.outputs, self.scale = tuple(names), tuple(outputs), scale
        self.weight = nn.Parameter(torch.empty(sum(outputs), inputs, dtype=dtype), requires_grad=False)
        self.lora_a = nn.ParameterList(torch.zeros(rank, inputs) for _ in outputs)
        self.lora_b = nn.ParameterList(torch.zeros(size, rank) for size in outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = LoraLinear.apply(x, self.weight, self.scale, *self.lora_a, *self.lora_b)
        return out


class DecoderLayer(nn.Module):
    """Attention and gated MLP with pre-norms, on [N, hidden]."""

    def __init__(self, shape: LlamaShape, rank: int, scale: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        query, kv = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.input_norm = nn.Parameter(torch.empty(hidden, dtype=dtype), requires_grad=False)
        self.post_norm = nn.Parameter(torch.empty(hidden, dtype=dtype), requires_grad=False)
        self.qkv = LoraGroup(
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], [query, kv, kv], hidden, rank, scale, dtype
        )
        self.out = LoraGroup(["self_attn.o_proj"], [hidden], query, rank, scale, dtype)
        self.gate_up = LoraGroup(["mlp.gate_proj", "mlp.up_proj"], [inner, inner], hidden, rank, scale, dtype)
        self.down = LoraGroup(["mlp.down_proj"], [hidden], inner, rank, scale, dtype)

    @property
    def groups(self) -> tuple[LoraGroup, ...]:
        return (self.qkv, self.out, self.gate_up, self.down)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], blocks: Sequence[AttentionBlock]) -> Tensor:
        epsilon = self.shape.norm_epsilon
        x = x + self.out(self._attend(self.qkv(RmsNorm.apply(x, self.input_norm, epsilon)), rotation, blocks))
        return x + self.down(SwiGlu.apply(self.gate_up(RmsNorm.apply(x, self.post_norm, epsilon))))

    def _attend(self, qkv: Tensor, rotation: tuple[Tensor, Tensor], blocks: Sequence[AttentionBlock]) -> Tensor:
        shape, rows = self.shape, len(qkv)
        kv, size, queries = shape.num_kv_heads, shape.head_size, shape.num_heads // shape.num_kv_heads
        query_width = shape.num_heads * size
        turned = qkv[:, : query_width + kv * size].view(rows, -1, size)
        rotated: Tensor = Rotate.apply(turned, *rotation)
        query = rotated[:, : shape.num_heads].view(rows, kv, queries, size).transpose(0, 1).contiguous()
        value = qkv[:, query_width + kv * size :].view(rows, kv, size)
        key_value = torch.cat([rotated[:, shape.num_heads :], value], dim=-1).transpose(0, 1).contiguous()
        out: Tensor = TreeAttention.apply(query, key_value, blocks)
        return out.transpose(0, 1).reshape(rows, query_width)


class PackedLlama(nn.Module):
    """Hidden states and token log-probs of packed rows."""

    def __init__(self, shape: LlamaShape, *, rank: int, alpha: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embedding = nn.Parameter(
            torch.empty(shape.vocab_size, shape.hidden_size, dtype=dtype), requires_grad=False
        )
        self.layers = nn.ModuleList(DecoderLayer(shape, rank, alpha / rank, dtype) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.empty(shape.hidden_size, dtype=dtype), requires_grad=False)
        self.head = self.embedding
        if not shape.tied_head:
            self.head = nn.Parameter(torch.empty_like(self.embedding), requires_grad=False)

    def decoder_layers(self) -> Iterator[DecoderLayer]:
        """The layers in order, typed."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def hidden(self, row: PackedRow) -> Tensor:
        """Final normed hidden states [N, hidden]."""
        rotation = rotations(torch.from_numpy(row.positions_N), self.shape, self.dtype)
        blocks = attention_blocks(row, self.dtype)
        x = self.embedding[torch.from_numpy(row.tokens_N)]
        for layer in self.layers:
            x = layer(x, rotation, blocks)
        out: Tensor = RmsNorm.apply(x, self.norm, self.shape.norm_epsilon)
        return out

    def forward(self, row: PackedRow, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy [U] of the row's distinct loss edges, float32; temperature applied."""
        hidden = self.hidden(row)[torch.from_numpy(row.source_U)]
        logprob, entropy = TokenLogprobs.apply(hidden, self.head, torch.from_numpy(row.target_U), temperature)
        return logprob, entropy


def rotations(positions_N: Tensor, shape: LlamaShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding, [N, 1, head/2] (RoFormer, arXiv 2104.09864)."""
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float32) / shape.head_size
    angles = positions_N[:, None].float() * (1.0 / shape.rope_theta**exponents)
    return angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]


def attention_blocks(row: PackedRow, dtype: torch.dtype) -> list[AttentionBlock]:
    """Cut the queries into blocks, each with only the keys that its nodes see."""
    visible = attention_mask(row)
    blocks = []
    for start in range(0, row.num_nodes, BLOCK_QUERIES):
        stop = min(start + BLOCK_QUERIES, row.num_nodes)
        keys = np.flatnonzero(visible[start:stop].any(axis=0))
        bias = torch.zeros(stop - start, 1, len(keys), dtype=dtype)
        bias.masked_fill_(torch.from_numpy(~visible[start:stop][:, keys])[:, None], float("-inf"))
        blocks.append(AttentionBlock(start, stop, torch.from_numpy(keys), bias))
    return blocks
