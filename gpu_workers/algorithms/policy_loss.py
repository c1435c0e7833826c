"""The clipped policy loss of PPO and GRPO per sampled token, weighted and summed over one micro-batch.

Sources: PPO (arXiv 1707.06347, eq. 7); asymmetric clip from DAPO (2503.14476, section 3.1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.algorithms.corrections import MismatchSums, correction_weights, mismatch_sums
from gpu_workers.algorithms.numerics import log_ratio, require_finite
from gpu_workers.contracts.runspec import AlgorithmSpec


@dataclass(frozen=True)
class PolicyLossInputs:
    """Sampled tokens (m=1) of a micro-batch, flattened to length T. Log-probs include the temperature.

    `weight_T` comes from aggregation and the whole batch's counts; `episode_T` names the episode in errors.
    """

    current_T: Tensor  # π, carries the gradient
    old_T: Tensor  # π_old, recomputed by the trainer before the step
    behaviour_T: Tensor  # μ, from the engine at sampling
    advantage_T: Tensor
    weight_T: Tensor
    episode_T: Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """`loss` is this micro-batch's share of the batch's loss; counts are additive."""

    loss: Tensor
    num_clipped: int
    mismatch: MismatchSums


def policy_loss(inputs: PolicyLossInputs, spec: AlgorithmSpec) -> PolicyLoss:
    """Σ w·c·(−min(r·A, clip(r, 1−ε_low, 1+ε_high)·A)), with r = exp(π − π_old) and the correction weight c.

    Raises NonFiniteError naming the episode. Without tokens the loss is 0 and still differentiable.
    """
    for name, values in (
        ("trainer log-prob", inputs.current_T),
        ("old log-prob", inputs.old_T),
        ("behaviour log-prob", inputs.behaviour_T),
        ("advantage", inputs.advantage_T),
    ):
        require_finite(name, values, inputs.episode_T)
    ratio = log_ratio(inputs.current_T, inputs.old_T.detach()).exp()
    clipped = ratio.clamp(1.0 - spec.clip_low, 1.0 + spec.clip_high)
    advantage = inputs.advantage_T.float()
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    correction = correction_weights(spec.correction, inputs.old_T, inputs.behaviour_T, cap=spec.correction_cap)
    loss = -(inputs.weight_T.float() * correction * objective).sum()
    acting = (clipped * advantage < ratio * advantage).detach()
    return PolicyLoss(
        loss=loss,
        num_clipped=int(acting.sum()),
        mismatch=mismatch_sums(inputs.old_T, inputs.behaviour_T, cap=spec.correction_cap),
    )
