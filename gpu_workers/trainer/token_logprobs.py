"""Log-probs of sampled tokens and the entropy of their distribution, without ever holding the [U, vocabulary] logits.

The vocabulary is visited in chunks with a running maximum, as flash attention visits keys, so that a chunk stays in the
cache. Everything is float32 but the products with the head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_WORDS = 4096
MAX_SHIFT = 1e4


def token_logprobs(
    hidden_UD: Tensor, head_VD: Tensor, target_U: Tensor, temperature: float, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """log p(target) and entropy of softmax(hidden · headᵀ / temperature), both [U] and float32.

    The gradient reaches `hidden_UD`, and `head_VD` where it is trained. The entropy carries one only when asked: it
    costs a second visit of the vocabulary.
    """
    needs_second_visit = entropy_gradient or head_VD.requires_grad
    kernel = SecondVisit if needs_second_visit and torch.is_grad_enabled() else FrozenHead
    logprob, entropy = kernel.apply(hidden_UD, head_VD, target_U, temperature)
    return logprob, entropy


@dataclass(frozen=True)
class Visit:
    """Of each row: log p(target), the entropy, log Σ exp(logits) and, where asked for, Σ p·head."""

    logprob_U: Tensor
    entropy_U: Tensor
    log_total_U: Tensor
    mean_head_UD: Tensor | None


def _visit(hidden_UD: Tensor, head_VD: Tensor, target_U: Tensor, temperature: float, *, wants_mean: bool) -> Visit:
    rows = len(hidden_UD)
    top = hidden_UD.new_full((rows, 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(top)  # Σ exp(l − top)
    moment = torch.zeros_like(top)  # Σ exp(l − top)·(l − top)
    chosen = torch.zeros_like(top)
    mean_head = hidden_UD.new_zeros(hidden_UD.shape, dtype=torch.float32) if wants_mean else None
    for start in range(0, len(head_VD), CHUNK_WORDS):
        words = head_VD[start : start + CHUNK_WORDS]
        logits = _logits(hidden_UD, words, temperature)
        inside, local = _inside(target_U, start, len(words))
        chosen = torch.where(inside, logits.gather(1, local), chosen)
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
    return Visit(
        logprob_U=chosen[:, 0] - top[:, 0] - log_total,
        entropy_U=log_total - moment[:, 0] / total[:, 0],
        log_total_U=top[:, 0] + log_total,
        mean_head_UD=None if mean_head is None else mean_head.div_(total),
    )


def _logits(hidden_UD: Tensor, words: Tensor, temperature: float) -> Tensor:
    logits = (hidden_UD @ words.T).float()
    return logits if temperature == 1.0 else logits.mul_(1.0 / temperature)


def _inside(target_U: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Whether each target lies in the chunk, and its place there (clamped), both [U, 1]."""
    local = target_U[:, None] - start
    return (local >= 0) & (local < size), local.clamp(0, size - 1)


class FrozenHead(torch.autograd.Function):
    """The gradient of a log-prob is a fixed vector in hidden space, head[target] − Σ p·head: one visit is enough."""

    @staticmethod
    def forward(
        ctx: Any, hidden_UD: Tensor, head_VD: Tensor, target_U: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        visit = _visit(hidden_UD, head_VD, target_U, temperature, wants_mean=ctx.needs_input_grad[0])
        ctx.temperature = temperature
        if visit.mean_head_UD is not None:
            slopes = head_VD[target_U].float().sub_(visit.mean_head_UD)
            ctx.save_for_backward(slopes.to(head_VD.dtype))
        ctx.mark_non_differentiable(visit.entropy_U)
        return visit.logprob_U, visit.entropy_U

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * (grads[0][:, None] / ctx.temperature).to(slopes.dtype), None, None, None


class SecondVisit(torch.autograd.Function):
    """Forms the logits again in the backward pass: gradients of the entropy and of the head too.

    With respect to a logit: ∂ log p(target) = 1[target] − p, ∂H = −p·(log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_UD: Tensor, head_VD: Tensor, target_U: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        visit = _visit(hidden_UD, head_VD, target_U, temperature, wants_mean=False)
        ctx.temperature = temperature
        ctx.save_for_backward(hidden_UD, head_VD, target_U, visit.log_total_U, visit.entropy_U)
        return visit.logprob_U, visit.entropy_U

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, head, target, log_total, entropy = ctx.saved_tensors
        grad_logprob, grad_entropy = (grad[:, None].float() for grad in grads)
        grad_hidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        grad_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        for start in range(0, len(head), CHUNK_WORDS):
            words = head[start : start + CHUNK_WORDS]
            logprob = _logits(hidden, words, ctx.temperature).sub_(log_total[:, None])
            slope = logprob.exp()
            slope.mul_(-grad_logprob - grad_entropy * (logprob + entropy[:, None]))
            inside, local = _inside(target, start, len(words))
            slope.scatter_add_(1, local, torch.where(inside, grad_logprob, 0.0))
            slope = slope.div_(ctx.temperature).to(head.dtype)
            grad_hidden += slope @ words
            if grad_head is not None:
                grad_head[start : start + len(words)] = slope.T @ hidden
        return grad_hidden.to(hidden.dtype), grad_head, None, None
