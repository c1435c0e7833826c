"""Off-policy corrections: weights for the gap between the engine's log-probs μ and the trainer's π_old.

Sources: truncated importance sampling as in the verl and slime documentation; with clipping around π_old it is
decoupled PPO (AReaL, arXiv 2505.24298, section 5.2). KL estimator k3: http://joschu.net/blog/kl-approx.html.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.algorithms.numerics import log_ratio
from gpu_workers.contracts.runspec import Correction


@dataclass(frozen=True)
class MismatchSums:
    """Sums over sampled tokens of π_old against μ, before any truncation; additive over micro-batches."""

    num_tokens: int = 0
    abs_difference: float = 0.0
    max_difference: float = 0.0
    k3: float = 0.0
    max_ratio: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    num_truncated: int = 0

    def __add__(self, other: "MismatchSums") -> "MismatchSums":
        return MismatchSums(
            num_tokens=self.num_tokens + other.num_tokens,
            abs_difference=self.abs_difference + other.abs_difference,
            max_difference=max(self.max_difference, other.max_difference),
            k3=self.k3 + other.k3,
            max_ratio=max(self.max_ratio, other.max_ratio),
            ratio=self.ratio + other.ratio,
            ratio_squared=self.ratio_squared + other.ratio_squared,
            num_truncated=self.num_truncated + other.num_truncated,
        )

    def metrics(self) -> dict[str, float]:
        """Means and extremes. The effective sample size is a share of the tokens: (Σk)² / (n·Σk²)."""
        count = max(self.num_tokens, 1)
        effective = self.ratio**2 / (count * self.ratio_squared) if self.ratio_squared > 0 else 0.0
        return {
            "logprob_mismatch_mean": self.abs_difference / count,
            "logprob_mismatch_max": self.max_difference,
            "kl_behaviour_k3": self.k3 / count,
            "importance_ratio_max": self.max_ratio,
            "effective_sample_size": effective,
            "truncated_share": self.num_truncated / count,
        }


def mismatch_sums(old_T: Tensor, behaviour_T: Tensor, *, cap: float) -> MismatchSums:
    """Compare π_old with μ on sampled tokens. `cap` only decides what counts as truncated."""
    if old_T.numel() == 0:
        return MismatchSums()
    difference = log_ratio(old_T.detach(), behaviour_T)
    ratio = difference.exp().double()
    # k3 of KL(μ‖π_old): samples come from μ, r = π_old/μ.
    k3 = ratio - 1.0 - difference.double()
    return MismatchSums(
        num_tokens=old_T.numel(),
        abs_difference=float(difference.abs().double().sum()),
        max_difference=float(difference.abs().max()),
        k3=float(k3.sum()),
        max_ratio=float(ratio.max()),
        ratio=float(ratio.sum()),
        ratio_squared=float((ratio * ratio).sum()),
        num_truncated=int((ratio > cap).sum()),
    )


def correction_weights(kind: Correction, old_T: Tensor, behaviour_T: Tensor, *, cap: float) -> Tensor:
    """Weight of each token's loss, without gradient: 1, or min(exp(π_old − μ), cap)."""
    if kind is Correction.NONE:
        return torch.ones_like(old_T, dtype=torch.float32, requires_grad=False)
    return log_ratio(old_T.detach(), behaviour_T).exp().clamp(max=cap)
