"""Autograd functions of the packed forward pass, written so that a step makes few passes over memory.

Each has the plain formula as its test. Where the base model is frozen no gradient is formed for its weights.
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
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        normal, scale, weight = ctx.saved_tensors
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grads[0].float() * normal.float()).sum(0).to(weight.dtype)
        grad = (grads[0] * weight).float()
        normal32 = normal.float()
        projection = (grad * normal32).mean(-1, keepdim=True)
        grad.sub_(normal32.mul_(projection) if normal32 is not normal else normal32 * projection).mul_(scale)
        return grad.to(normal.dtype), grad_weight, None


class SwiGlu(torch.autograd.Function):
    """y = silu(gate) · up, with gate and up side by side in one tensor [N, 2·I]."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        activated = F.silu(gate)
        ctx.save_for_backward(gate_up, activated)
        return activated * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gate_up, activated = ctx.saved_tensors
        grad = grads[0]
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        half = gate.shape[-1]
        torch.mul(activated, grad, out=out[:, half:])
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=out[:, :half])
        return out


class Rotate(torch.autograd.Function):
    """Rotary embedding of [N, heads, D] in the Hugging Face layout: the two halves of a head are the two axes."""

    @staticmethod
    def forward(ctx: Any, x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        first, second = x_NHD.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        first, second = grads[0].chunk(2, dim=-1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1), None, None


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

    query [KV, N, G, D], key_value [KV, N, 2·D] (key, then value); output [KV, N, G, D].
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key_value: Tensor, blocks: Sequence[AttentionBlock]) -> Tensor:
        num_kv, _, num_queries, size = query.shape
        out = torch.empty_like(query)
        query = query * size**-0.5
        saved: list[Tensor] = []
        for block in blocks:
            rows = block.stop - block.start
            q = query[:, block.start : block.stop].reshape(num_kv, rows * num_queries, size)
            visible = key_value.index_select(1, block.keys)
            scores = torch.bmm(q, visible[..., :size].transpose(1, 2))
            scores.view(num_kv, rows, num_queries, -1).add_(block.bias)
            weights = torch.softmax(scores, dim=-1)
            attended = torch.bmm(weights, visible[..., size:])
            out[:, block.start : block.stop] = attended.view(num_kv, rows, num_queries, size)
            saved += [weights, visible]
        ctx.save_for_backward(query, out, *saved)
        ctx.blocks = blocks
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        query, out, *saved = ctx.saved_tensors
        num_kv, num_nodes, num_queries, size = query.shape
        grad_out = grads[0]
        grad_query = torch.empty_like(query)
        grad_key_value = torch.zeros(num_kv, num_nodes, 2 * size, dtype=torch.float32, device=query.device)
        delta = (grad_out * out).sum(-1, keepdim=True, dtype=torch.float32).to(out.dtype)
        for block, weights, visible in zip(ctx.blocks, saved[::2], saved[1::2], strict=True):
            rows = block.stop - block.start
            window = slice(block.start, block.stop)
            flat = (num_kv, rows * num_queries, size)
            q, grad = query[:, window].reshape(flat), grad_out[:, window].reshape(flat)
            grad_scores = torch.bmm(grad, visible[..., size:].transpose(1, 2))
            grad_scores.sub_(delta[:, window].reshape(num_kv, -1, 1)).mul_(weights)
            grad_query[:, window] = torch.bmm(grad_scores, visible[..., :size]).view(num_kv, rows, num_queries, size)
            grad_key = torch.bmm(grad_scores.transpose(1, 2), q)
            grad_value = torch.bmm(weights.transpose(1, 2), grad)
            grad_key_value.index_add_(1, block.keys, torch.cat([grad_key, grad_value], dim=-1).float())
        return grad_query.mul_(size**-0.5), grad_key_value.to(query.dtype), None
