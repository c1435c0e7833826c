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


MAX_SHIFT = 1e4


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


class TokenLogprobs(torch.autograd.Function):
    """log p(target) and entropy of softmax(hidden · headᵀ / temperature) for U rows; the head is frozen.

    The vocabulary is visited in chunks with a running maximum, as flash attention visits keys, so that a chunk stays in
    the cache and the [U, vocabulary] logits never exist. The gradient of a row's log-prob is a fixed vector in hidden
    space, head[target] − Σ p·head, accumulated on the way.
    """

    CHUNK_WORDS = 4096

    @staticmethod
    def forward(
        ctx: Any, hidden_UD: Tensor, head_VD: Tensor, target_U: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        wants_grad = ctx.needs_input_grad[0]
        rows = len(hidden_UD)
        top = hidden_UD.new_full((rows, 1), -torch.inf, dtype=torch.float32)
        total = torch.zeros_like(top)  # Σ exp(l − top)
        moment = torch.zeros_like(top)  # Σ exp(l − top)·(l − top)
        chosen = torch.zeros_like(top)
        mean_head = hidden_UD.new_zeros(hidden_UD.shape, dtype=torch.float32) if wants_grad else None
        for start in range(0, len(head_VD), TokenLogprobs.CHUNK_WORDS):
            words = head_VD[start : start + TokenLogprobs.CHUNK_WORDS]
            logits = (hidden_UD @ words.T).float()
            if temperature != 1.0:
                logits.mul_(1.0 / temperature)
            local = target_U[:, None] - start
            inside = (local >= 0) & (local < len(words))
            chosen = torch.where(inside, logits.gather(1, local.clamp(0, len(words) - 1)), chosen)
            new_top = torch.maximum(top, logits.amax(-1, keepdim=True))
            shift = (top - new_top).nan_to_num(nan=0.0, neginf=-MAX_SHIFT)  # first chunk: nothing to rescale yet
            shrink = shift.exp()
            moment = (moment + total * shift) * shrink
            total = total * shrink
            logits.sub_(new_top)
            weight = logits.exp()
            total += weight.sum(-1, keepdim=True)
            moment += torch.linalg.vecdot(weight, logits)[:, None]
            if mean_head is not None:
                mean_head.mul_(shrink).add_(weight.to(head_VD.dtype) @ words)
            top = new_top
        log_total = total[:, 0].log()
        logprob = chosen[:, 0] - top[:, 0] - log_total
        entropy = log_total - moment[:, 0] / total[:, 0]
        ctx.temperature = temperature
        if mean_head is not None:
            slopes = head_VD[target_U].float().sub_(mean_head.div_(total))
            ctx.save_for_backward(slopes.to(head_VD.dtype))
        ctx.mark_non_differentiable(entropy)
        return logprob, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * (grads[0][:, None] / ctx.temperature).to(slopes.dtype), None, None, None
