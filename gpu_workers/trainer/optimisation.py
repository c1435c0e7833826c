"""The optimiser: AdamW on float32 masters, its schedule of the learning rate, and a bound on the gradient norm."""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpu_workers.contracts.runspec import OptimiserSpec, Schedule

ADAM_EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(spec: OptimiserSpec, step: int, total_steps: int) -> float:
    """Rate of the step numbered from 0: linear warm-up, then constant, or falling to `min_rate_share` of it."""
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    left = max(total_steps - step, 0) / max(total_steps - spec.warmup_steps, 1)
    return spec.learning_rate * _shares(spec, min(1.0, left))


def _shares(spec: OptimiserSpec, left: float) -> float:
    schedule = Schedule.LINEAR if spec.decay else spec.schedule
    if schedule is Schedule.CONSTANT:
        return 1.0
    curve = left if schedule is Schedule.LINEAR else 0.5 * (1.0 - math.cos(math.pi * left))
    return spec.min_rate_share + (1.0 - spec.min_rate_share) * curve


class Optimiser:
    """AdamW over named parameters. One `step` reads `.grad`, applies or refuses the update, and clears it.

    Weight decay acts on matrices only, as is usual: not on norms and biases.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], spec: OptimiserSpec) -> None:
        self._parameters = parameters
        self._spec = spec
        matrices = [p for p in parameters.values() if p.dim() > 1]
        vectors = [p for p in parameters.values() if p.dim() <= 1]
        self._adam = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": spec.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=spec.learning_rate,
            betas=(spec.beta1, spec.beta2),
            eps=ADAM_EPSILON,
            fused=True,
        )

    def step(self, rate: float) -> tuple[float, bool]:
        """Returns the gradient norm before clipping and whether the update was applied (not on NaN or infinity)."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._spec.grad_clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        finite = bool(torch.isfinite(norm))
        if finite:
            for group in self._adam.param_groups:
                group["lr"] = rate
            self._adam.step()
        self.clear()
        return float(norm), finite

    def clear(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def gradients_finite(self) -> bool:
        """Of this rank's shards."""
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        return all(bool(torch.isfinite(_local(gradient)).all()) for gradient in gradients)

    def moments(self) -> dict[str, Tensor]:
        """Adam's moments as `adam.<field>.<parameter>`, sharded as the parameters are; empty before any update."""
        return {
            f"adam.{field}.{name}": self._adam.state[parameter][field]
            for name, parameter in self._parameters.items()
            if parameter in self._adam.state
            for field in MOMENTS
        }

    def empty_moments(self) -> dict[str, Tensor]:
        """What `moments` will be, to be read into."""
        return {
            f"adam.{field}.{name}": torch.zeros_like(parameter, requires_grad=False)
            for name, parameter in self._parameters.items()
            for field in MOMENTS
        }

    def restore(self, moments: dict[str, Tensor], num_updates: int) -> None:
        """Inverse of `moments`, after that many updates."""
        for name, parameter in self._parameters.items():
            self._adam.state.pop(parameter, None)
            if num_updates:
                state = {field: moments[f"adam.{field}.{name}"] for field in MOMENTS}
                self._adam.state[parameter] = {
                    "step": torch.tensor(float(num_updates), device=parameter.device),
                    **state,
                }


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
