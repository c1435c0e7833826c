"""The supervised loss: mean negative log-likelihood of the assistant's tokens."""

from dataclasses import dataclass

from torch import Tensor

from gpu_workers.algorithms.numerics import require_finite


@dataclass(frozen=True)
class SupervisedLossInputs:
    """Target tokens (m=1) of a micro-batch, flattened to length T; weights from the whole batch's counts."""

    current_T: Tensor
    weight_T: Tensor
    episode_T: Tensor  # row of the example in the batch, named in errors


def supervised_loss(inputs: SupervisedLossInputs) -> Tensor:
    """−Σ w·π. Raises NonFiniteError naming the example."""
    require_finite("trainer log-prob", inputs.current_T, inputs.episode_T)
    return -(inputs.weight_T.float() * inputs.current_T.float()).sum()
