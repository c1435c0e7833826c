"""Autograd functions of the packed forward pass, written so that a step makes few passes over memory.

Each has the plain formula as its test. Weights of the base model are frozen: no gradient is formed for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class RmsNorm(torch.autograd.Function):
    """y = w · x / rms(x) over the last dimension; statistics in float32."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
        x = x_ND.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
        normal = x.mul_(scale) if x_ND.dtype != torch.float32 else x * scale
        normal = normal.to(x_ND.dtype)
        ctx.save_for_backward(normal, scale, weight_D)
        return normal * weight_D

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        normal, scale, weight = ctx.saved_tensors
        grad = (grads[0] * weight).float()
        normal32 = normal.float()
        projection = (grad * normal32).mean(-1, keepdim=True)
        grad.sub_(normal32.mul_(projection) if normal32 is not normal else normal32 * projection).mul_(scale)
        return grad.to(normal.dtype), None, None


class SwiGlu(torch.autograd.Function):
    """y = silu(gate) · up, with gate and up side by side in one tensor [N, 2·I]."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad = grads[0]
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        half = gate.shape[-1]
        torch.mul(F.silu(gate), grad, out=out[:, half:])
        out[:, :half] = torch.ops.aten.silu_backward(grad * up, gate)
        return out


class LoraLinear(torch.autograd.Function):
    """y = x Wᵀ + s·(x Aᵀ) Bᵀ for J linear layers that read the same input, outputs side by side.

    weight [ΣO, K] is frozen. a_Js [r, K] and b_Js [O_j, r] carry gradients in their own (master) dtype; the product is
    formed in the input's dtype.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: float, *factors: Tensor) -> Tensor:
        half = len(factors) // 2
        a_all = torch.cat([a.to(x.dtype) for a in factors[:half]])
        b_all = block_diagonal([b.to(x.dtype) for b in factors[half:]]).mul_(scale)
        hidden = x @ a_all.T
        out = x @ weight.T
        out.addmm_(hidden, b_all.T)
        ctx.save_for_backward(x, weight, a_all, b_all, hidden)
        ctx.scale, ctx.factors = scale, factors
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a_all, b_all, hidden = ctx.saved_tensors
        grad = grads[0]
        half = len(ctx.factors) // 2
        grad_hidden = grad @ b_all
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ weight
            grad_x.addmm_(grad_hidden, a_all)
        grad_a = grad_hidden.T @ x
        a_parts = list(grad_a.split([a.shape[0] for a in ctx.factors[:half]]))
        b_parts, row, column = [], 0, 0
        for b in ctx.factors[half:]:
            piece = grad[:, row : row + b.shape[0]].T @ hidden[:, column : column + b.shape[1]]
            b_parts.append(piece.to(b.dtype).mul_(ctx.scale))
            row, column = row + b.shape[0], column + b.shape[1]
        a_grads = [part.to(a.dtype) for part, a in zip(a_parts, ctx.factors[:half], strict=True)]
        return (grad_x, None, None, *a_grads, *b_parts)


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """Blocks along the diagonal, zeros elsewhere."""
    if len(blocks) == 1:
        return blocks[0].clone()
    return torch.block_diag(*blocks)


@dataclass(frozen=True)
class AttentionBlock:
    """Rows [start, stop) of the queries with the keys any of them may see; bias is 0 or −inf, [rows, 1, keys]."""

    start: int
    stop: int
    keys: Tensor
    bias: Tensor


class TreeAttention(torch.autograd.Function):
    """Grouped-query attention in which each node sees its own path, computed in blocks of queries.

    query [KV, N, G, D], key and value [KV, N, D]; output [KV, N, G, D].
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[AttentionBlock]) -> Tensor:
        num_kv, _, num_queries, size = query.shape
        out = torch.empty_like(query)
        saved: list[Tensor] = []
        for block in blocks:
            rows = block.stop - block.start
            q = query[:, block.start : block.stop].reshape(num_kv, rows * num_queries, size)
            k, v = key[:, block.keys], value[:, block.keys]
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(size**-0.5)
            scores.view(num_kv, rows, num_queries, -1).add_(block.bias)
            weights = torch.softmax(scores, dim=-1)
            out[:, block.start : block.stop] = torch.bmm(weights, v).view(num_kv, rows, num_queries, size)
            saved.append(weights)
        ctx.save_for_backward(query, key, value, out, *saved)
        ctx.blocks = blocks
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, *saved = ctx.saved_tensors
        num_kv, _, num_queries, size = query.shape
        grad_out = grads[0]
        grad_query = torch.empty_like(query)
        grad_key = torch.zeros(key.shape, dtype=torch.float32, device=key.device)
        grad_value = torch.zeros_like(grad_key)
        delta = (grad_out.float() * out.float()).sum(-1, keepdim=True)
        for block, weights in zip(ctx.blocks, saved, strict=True):
            rows = block.stop - block.start
            window = slice(block.start, block.stop)
            flat = (num_kv, rows * num_queries, size)
            q, grad = query[:, window].reshape(flat), grad_out[:, window].reshape(flat)
            k, v = key[:, block.keys], value[:, block.keys]
            grad_value.index_add_(1, block.keys, torch.bmm(weights.transpose(1, 2), grad).float())
            grad_scores = torch.bmm(grad, v.transpose(1, 2))
            grad_scores.sub_(delta[:, window].reshape(num_kv, -1, 1)).mul_(weights).mul_(size**-0.5)
            grad_query[:, window] = torch.bmm(grad_scores, k).view(num_kv, rows, num_queries, size)
            grad_key.index_add_(1, block.keys, torch.bmm(grad_scores.transpose(1, 2), q).float())
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None


class TokenLogprobs(torch.autograd.Function):
    """log p(target) and entropy of softmax(hidden · headᵀ / temperature), U rows in chunks; the head is frozen.

    The gradient of a row's log-prob is a fixed vector in hidden space, formed in the forward pass, so that the
    [U, vocabulary] logits never outlive a chunk.
    """

    CHUNK_ROWS = 64

    @staticmethod
    def forward(
        ctx: Any, hidden_UD: Tensor, head_VD: Tensor, target_U: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        wants_grad = ctx.needs_input_grad[0]
        logprob, entropy, slopes = [], [], []
        for start in range(0, len(hidden_UD), TokenLogprobs.CHUNK_ROWS):
            hidden = hidden_UD[start : start + TokenLogprobs.CHUNK_ROWS]
            target = target_U[start : start + TokenLogprobs.CHUNK_ROWS, None]
            logits = (hidden @ head_VD.T).float()
            if temperature != 1.0:
                logits.mul_(1.0 / temperature)
            logits.sub_(logits.amax(-1, keepdim=True))
            chosen = logits.gather(1, target).squeeze(1)
            probability = logits.exp()
            total = probability.sum(-1, keepdim=True)
            log_total = total.log().squeeze(1)
            logprob.append(chosen - log_total)
            probability.mul_(1.0 / total)
            entropy.append(log_total - torch.linalg.vecdot(probability, logits))
            if wants_grad:
                probability.neg_().scatter_add_(1, target, torch.ones_like(target, dtype=probability.dtype))
                slopes.append(probability.to(head_VD.dtype) @ head_VD)
        ctx.temperature = temperature
        if wants_grad:
            ctx.save_for_backward(torch.cat(slopes) if slopes else hidden_UD)
        logprobs, entropies = _join(logprob, hidden_UD), _join(entropy, hidden_UD)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * (grads[0][:, None] / ctx.temperature).to(slopes.dtype), None, None, None


def _join(chunks: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat(list(chunks)) if chunks else like.new_zeros(0, dtype=torch.float32)
