"""Numeric rules every loss shares: the bound on log-ratios, means of an episode, the refusal of non-finite input."""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0


class NonFiniteError(ValueError):
    """A NaN or infinity in a loss input; `episode` is the row of the offending episode in the batch."""

    def __init__(self, name: str, episode: int) -> None:
        super().__init__(f"{name} of episode {episode} is NaN or infinite: refused, look at that episode")
        self.name = name
        self.episode = episode


def log_ratio(new_T: Tensor, old_T: Tensor) -> Tensor:
    """new − old in float32, clamped to ±20 so that exp stays finite."""
    return (new_T.float() - old_T.float()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def episode_means(values_T: Tensor, episode_T: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of `values_T` over each episode and its number of tokens n, both repeated on the episode's tokens.

    The tokens given must be whole episodes: a micro-batch may not cut one.
    """
    episodes, row_T = torch.unique(episode_T, return_inverse=True)
    total = torch.zeros(len(episodes), dtype=torch.float32, device=values_T.device)
    counts = torch.zeros_like(total).index_add_(0, row_T, torch.ones_like(row_T, dtype=torch.float32))
    means = total.index_add(0, row_T, values_T.float()) / counts
    return means[row_T], counts[row_T]


def require_finite(name: str, values_T: Tensor, episode_T: Tensor) -> None:
    """Raise NonFiniteError for the first token of `values_T` that is not finite."""
    bad = ~torch.isfinite(values_T)
    if bool(bad.any()):
        raise NonFiniteError(name, int(episode_T[bad][0]))
