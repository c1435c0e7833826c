"""The clipped value loss of PPO: regression of V on the return, not further than a bound from V_old.

Source: the reference implementation of PPO (openai/baselines, ppo2); design of the bound: V_old ± clip.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.algorithms.numerics import require_finite
from gpu_workers.algorithms.sums import Sums


@dataclass(frozen=True)
class ValueLossInputs:
    """Sampled tokens (m=1) of a micro-batch, flattened to length T; weights from the whole batch's counts."""

    current_T: Tensor  # V, carries the gradient
    old_T: Tensor  # V_old, before the step
    return_T: Tensor
    weight_T: Tensor
    episode_T: Tensor


@dataclass(frozen=True)
class ValueSums(Sums):
    """Sums over tokens of the value function before the step against the return."""

    num_tokens: int = 0
    num_clipped: int = 0
    loss: float = 0.0
    error_squared: float = 0.0
    returns: float = 0.0
    returns_squared: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Explained variance is 1 − Σ(R − V_old)² / Σ(R − mean R)²; 0 where the returns do not vary."""
        count = max(self.num_tokens, 1)
        spread = self.returns_squared - self.returns**2 / count
        return {
            "value_loss": self.loss,
            "value_clip_fraction": self.num_clipped / count,
            "explained_variance": 1.0 - self.error_squared / spread if spread > 1e-12 * count else 0.0,
        }


def value_loss(inputs: ValueLossInputs, *, clip: float) -> tuple[Tensor, ValueSums]:
    """Σ w·0.5·max((V − R)², (clip(V, V_old ± clip) − R)²). Raises NonFiniteError naming the episode."""
    require_finite("value", inputs.current_T, inputs.episode_T)
    require_finite("old value", inputs.old_T, inputs.episode_T)
    require_finite("return", inputs.return_T, inputs.episode_T)
    target, old = inputs.return_T.float(), inputs.old_T.detach().float()
    current = inputs.current_T.float()
    bounded = old + (current - old).clamp(-clip, clip)
    plain_error, bounded_error = (current - target).square(), (bounded - target).square()
    held = ((current - old).abs() > clip) & (bounded_error > plain_error)  # rounding alone holds nothing
    loss = (inputs.weight_T.float() * 0.5 * torch.maximum(plain_error, bounded_error)).sum()
    exact = target.double()
    return loss, ValueSums(
        num_tokens=len(current),
        num_clipped=int(held.sum()),
        loss=float(loss.detach()),
        error_squared=float((exact - old.double()).square().sum()),
        returns=float(exact.sum()),
        returns_squared=float(exact.square().sum()),
    )
