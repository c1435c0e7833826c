"""Numeric rules every loss shares: the bound on log-ratios and the refusal of non-finite input."""

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


def require_finite(name: str, values_T: Tensor, episode_T: Tensor) -> None:
    """Raise NonFiniteError for the first token of `values_T` that is not finite."""
    bad = ~torch.isfinite(values_T)
    if bool(bad.any()):
        raise NonFiniteError(name, int(episode_T[bad][0]))
