"""Importance ratios of the current policy to π_old: a token's own, or its sequence's.

Sources: PPO (arXiv 1707.06347); GSPO (2507.18071, eq. 7, and eq. 14 for the token form).
"""

from torch import Tensor

from gpu_workers.algorithms.numerics import episode_means, log_ratio
from gpu_workers.contracts.runspec import Algorithm


def importance_ratios(kind: Algorithm, current_T: Tensor, old_T: Tensor, episode_T: Tensor) -> Tensor:
    """r = exp(π − π_old); for GSPO sg(s)·exp(π − sg(π)) with s = exp(mean over the episode of π − π_old)."""
    difference = log_ratio(current_T, old_T.detach())
    if kind is not Algorithm.GSPO:
        return difference.exp()
    mean_T, _ = episode_means(difference.detach(), episode_T)
    return mean_T.exp() * (current_T.float() - current_T.detach().float()).exp()
