"""The clipped surrogate objective per token and what the clip did.

Sources: PPO (arXiv 1707.06347, eq. 7); asymmetric bounds, DAPO (2503.14476, 3.1); dual clip (1912.09729, eq. 5).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.algorithms.sums import Sums


@dataclass(frozen=True)
class ClipSums(Sums):
    """Sampled tokens whose gradient the clip removed: above, below, or at the dual clip."""

    num_above: int = 0
    num_below: int = 0
    num_dual: int = 0

    @property
    def num_clipped(self) -> int:
        return self.num_above + self.num_below + self.num_dual


def clipped_objective(
    ratio_T: Tensor, advantage_T: Tensor, *, low: float, high: float, dual: float = 0.0
) -> tuple[Tensor, ClipSums]:
    """min(r·A, clip(r, 1 − low, 1 + high)·A); where A < 0 and `dual` > 0, at least dual·A."""
    plain = ratio_T * advantage_T
    clipped = ratio_T.clamp(1.0 - low, 1.0 + high) * advantage_T
    objective = torch.minimum(plain, clipped)
    acts = (clipped < plain).detach()
    num_dual = 0
    if dual > 0.0:
        floored = (advantage_T < 0) & (objective < dual * advantage_T)
        objective = torch.where(floored, dual * advantage_T, objective)
        num_dual = int(floored.sum())
    above = acts & (advantage_T > 0)
    return objective, ClipSums(int(above.sum()), int(acts.sum()) - int(above.sum()), num_dual)
