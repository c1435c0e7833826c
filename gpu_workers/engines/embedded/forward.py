"""The forward pass of a Llama-family decoder over one Batch; rounding follows transformers, so log-probs agree."""

import torch
import torch.nn.functional as F

from gpu_workers.engines.embedded.attention import BatchAttention
from gpu_workers.engines.embedded.batch import Batch
from gpu_workers.engines.embedded.branches import BranchPool
from gpu_workers.engines.embedded.config import LlamaConfig
from gpu_workers.engines.embedded.lora import linear_with_adapters
from gpu_workers.engines.embedded.weights import LayerWeights, LlamaWeights


class RotaryTable:
    """cos and sin [context, 1, D]; the sign of the rotation is folded into sin."""

    def __init__(self, config: LlamaConfig, dtype: torch.dtype) -> None:
        half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        angles = torch.outer(torch.arange(config.context_length).float(), 1.0 / config.rope_theta**half)
        self.cos = torch.cat([angles.cos(), angles.cos()], dim=-1).to(dtype).unsqueeze(1)
        self.sin = torch.cat([-angles.sin(), angles.sin()], dim=-1).to(dtype).unsqueeze(1)


def rotate(x_NHD: torch.Tensor, cos_N1D: torch.Tensor, sin_N1D: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), halves convention."""
    half = x_NHD.shape[-1] // 2
    swapped = torch.cat([x_NHD[..., half:], x_NHD[..., :half]], dim=-1)
    return (x_NHD * cos_N1D).add_(swapped.mul_(sin_N1D))


def rms_norm(x_ND: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm with float32 statistics."""
    x = x_ND.float()
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = norm.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x_ND.dtype).mul_(weight_D)


def forward(
    config: LlamaConfig, weights: LlamaWeights, rotary: RotaryTable, branches: BranchPool, batch: Batch
) -> torch.Tensor:
    """Final hidden states (after the last norm) of batch.wanted_rows."""
    attention = BatchAttention(batch, branches)
    x = weights.embedding.index_select(0, batch.tokens)
    cos, sin = rotary.cos.index_select(0, batch.positions), rotary.sin.index_select(0, batch.positions)
    for index, layer in enumerate(weights.layers):
        x = _layer(config, layer, index, x, cos, sin, attention, batch)
    return rms_norm(x.index_select(0, batch.wanted_rows), weights.norm, config.rms_eps)


def _layer(
    config: LlamaConfig,
    layer: LayerWeights,
    index: int,
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    attention: BatchAttention,
    batch: Batch,
) -> torch.Tensor:
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    hidden = rms_norm(x, layer.input_norm, config.rms_eps)
    qkv = linear_with_adapters(layer.qkv, "qkv", index, hidden, batch.adapters).view(len(x), heads + 2 * kv_heads, dim)
    qk = rotate(qkv[:, : heads + kv_heads], cos, sin)
    q = qk[:, :heads].view(len(x), config.queries_per_kv, kv_heads, dim)
    context = attention(index, q, qk[:, heads:], qkv[:, heads + kv_heads :])
    x = x + linear_with_adapters(layer.output, "output", index, context, batch.adapters)
    hidden = rms_norm(x, layer.post_norm, config.rms_eps)
    gate_up = linear_with_adapters(layer.gate_up, "gate_up", index, hidden, batch.adapters)
    gate, up = gate_up.split(config.intermediate_size, dim=-1)
    return x + linear_with_adapters(layer.down, "down", index, F.silu(gate).mul_(up), batch.adapters)
