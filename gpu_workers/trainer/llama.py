"""The Llama forward pass over packed rows: exact Hugging Face parameters, fused linear layers, tree attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gpu_workers.contracts.runspec import LoraSpec
from gpu_workers.trainer.kernels import AttentionBlock, LoraLinear, RmsNorm, Rotate, SwiGlu, TreeAttention
from gpu_workers.trainer.model_backend import RowOutput
from gpu_workers.trainer.packing import PackedRow, attention_mask
from gpu_workers.trainer.token_logprobs import token_logprobs

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


@dataclass(frozen=True)
class TrainedParts:
    """What of the model is trained and how it computes. `lora` None: every weight, with float32 masters."""

    lora: LoraSpec | None
    dtype: torch.dtype  # of activations and products
    value_head: bool = False
    entropy_gradient: bool = False
    recompute_layers: bool = False  # activation checkpointing

    @property
    def weight_dtype(self) -> torch.dtype:
        """Frozen weights are kept as they are computed with; trained ones in float32."""
        return self.dtype if self.lora else torch.float32


class LinearGroup(nn.Module):
    """J linear layers with a common input, weights side by side: frozen with a float32 LoRA pair each, or trained."""

    def __init__(self, names: Sequence[str], outputs: Sequence[int], inputs: int, parts: TrainedParts) -> None:
        super().__init__()
        self.names, self.outputs = tuple(names), tuple(outputs)
        self.weight = nn.Parameter(
            torch.empty(sum(outputs), inputs, dtype=parts.weight_dtype), requires_grad=parts.lora is None
        )
        rank = parts.lora.rank if parts.lora else 0
        self.scale = parts.lora.alpha / rank if parts.lora else 0.0
        self.adapted = parts.lora is not None
        sizes = outputs if self.adapted else ()
        self.lora_a = nn.ParameterList(torch.zeros(rank, inputs) for _ in sizes)
        self.lora_b = nn.ParameterList(torch.zeros(size, rank) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        if not self.adapted:
            return F.linear(x, self.weight.to(x.dtype))
        out: Tensor = LoraLinear.apply(x, self.weight, self.scale, *self.lora_a, *self.lora_b)
        return out


class DecoderLayer(nn.Module):
    """Attention and gated MLP with pre-norms, on [N, hidden]."""

    def __init__(self, shape: LlamaShape, parts: TrainedParts) -> None:
        super().__init__()
        self.shape, self.parts = shape, parts
        query, kv = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.input_norm = _weight(parts, hidden)
        self.post_norm = _weight(parts, hidden)
        self.qkv = LinearGroup(
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], [query, kv, kv], hidden, parts
        )
        self.out = LinearGroup(["self_attn.o_proj"], [hidden], query, parts)
        self.gate_up = LinearGroup(["mlp.gate_proj", "mlp.up_proj"], [inner, inner], hidden, parts)
        self.down = LinearGroup(["mlp.down_proj"], [hidden], inner, parts)

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        return (self.qkv, self.out, self.gate_up, self.down)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], blocks: Sequence[AttentionBlock]) -> Tensor:
        if self.parts.recompute_layers and torch.is_grad_enabled():
            out: Tensor = checkpoint(self._layer, x, rotation, blocks, use_reentrant=False)
            return out
        return self._layer(x, rotation, blocks)

    def _layer(self, x: Tensor, rotation: tuple[Tensor, Tensor], blocks: Sequence[AttentionBlock]) -> Tensor:
        x = x + self.out(self._attend(self.qkv(self._norm(x, self.input_norm)), rotation, blocks))
        return x + self.down(SwiGlu.apply(self.gate_up(self._norm(x, self.post_norm))))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = RmsNorm.apply(x, weight.to(x.dtype), self.shape.norm_epsilon)
        return out

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


class ValueHead(nn.Module):
    """V of a state from the policy's final hidden state, float32; zero at the start."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden_UD: Tensor) -> Tensor:
        return F.linear(hidden_UD.float(), self.weight, self.bias)[:, 0]


class PackedLlama(nn.Module):
    """Hidden states, token log-probs and values of packed rows."""

    def __init__(self, shape: LlamaShape, parts: TrainedParts) -> None:
        super().__init__()
        self.shape, self.parts, self.dtype = shape, parts, parts.dtype
        self.embedding = _weight(parts, shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(shape, parts) for _ in range(shape.num_layers))
        self.norm = _weight(parts, shape.hidden_size)
        self.head = self.embedding if shape.tied_head else _weight(parts, shape.vocab_size, shape.hidden_size)
        self.value_head = ValueHead(shape.hidden_size) if parts.value_head else None

    def decoder_layers(self) -> Iterator[DecoderLayer]:
        """The layers in order, typed."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def hidden(self, row: PackedRow) -> Tensor:
        """Final normed hidden states [N, hidden]."""
        device = self.embedding.device
        rotation = rotations(torch.from_numpy(row.positions_N).to(device), self.shape, self.dtype)
        blocks = attention_blocks(row, self.dtype, device)
        x = F.embedding(torch.from_numpy(row.tokens_N).to(device), self.embedding).to(self.dtype)
        for layer in self.layers:
            x = layer(x, rotation, blocks)
        out: Tensor = RmsNorm.apply(x, self.norm.to(self.dtype), self.shape.norm_epsilon)
        return out

    def forward(self, row: PackedRow, temperature: float = 1.0) -> RowOutput:
        """Of the row's distinct loss edges."""
        device = self.embedding.device
        hidden = self.hidden(row)[torch.from_numpy(row.source_U).to(device)]
        logprob, entropy = token_logprobs(
            hidden,
            self.head.to(self.dtype),
            torch.from_numpy(row.target_U).to(device),
            temperature,
            entropy_gradient=self.parts.entropy_gradient,
        )
        return RowOutput(logprob, entropy, None if self.value_head is None else self.value_head(hidden))


def _weight(parts: TrainedParts, *sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*sizes, dtype=parts.weight_dtype), requires_grad=parts.lora is None)


def rotations(positions_N: Tensor, shape: LlamaShape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary embedding, [N, 1, head/2] (RoFormer, arXiv 2104.09864)."""
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float32, device=positions_N.device) / shape.head_size
    angles = positions_N[:, None].float() * (1.0 / shape.rope_theta**exponents)
    return angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]


def attention_blocks(row: PackedRow, dtype: torch.dtype, device: torch.device) -> list[AttentionBlock]:
    """Cut the queries into blocks, each with only the keys that its nodes see."""
    visible = attention_mask(row)
    blocks = []
    for start in range(0, row.num_nodes, BLOCK_QUERIES):
        stop = min(start + BLOCK_QUERIES, row.num_nodes)
        keys: NDArray[np.int64] = np.flatnonzero(visible[start:stop].any(axis=0))
        bias = torch.zeros(stop - start, 1, len(keys), dtype=dtype)
        bias.masked_fill_(torch.from_numpy(~visible[start:stop][:, keys])[:, None], float("-inf"))
        blocks.append(AttentionBlock(start, stop, torch.from_numpy(keys).to(device), bias.to(device)))
    return blocks
