"""Estimators of KL(π‖π_ref) from one sampled token, with Δ = π_ref − π.

Source: http://joschu.net/blog/kl-approx.html; k3 as a loss is GRPO's (arXiv 2402.03300, eq. 4). k1 is unbiased, but the
mean gradient of k1 as a loss is zero, so it belongs into the reward.
"""

import torch
from torch import Tensor

from gpu_workers.algorithms.numerics import log_ratio
from gpu_workers.contracts.runspec import KlEstimator


def kl_terms(kind: KlEstimator, current_T: Tensor, reference_T: Tensor) -> Tensor:
    """k1 = −Δ, k2 = Δ²/2, k3 = exp(Δ) − Δ − 1 per token, float32; gradient through π only."""
    difference = log_ratio(reference_T.detach(), current_T)
    if kind is KlEstimator.K1:
        return -difference
    if kind is KlEstimator.K2:
        return 0.5 * difference.square()
    return torch.expm1(difference) - difference
