"""The optimiser of the adapter: AdamW with warm-up, optional linear decay and a bound on the gradient norm."""

import torch
from torch import Tensor, nn

from gpu_workers.contracts.runspec import OptimiserSpec
from gpu_workers.trainer.world import like, whole

ADAM_EPSILON = 1e-8


def learning_rate(spec: OptimiserSpec, step: int, total_steps: int) -> float:
    """Rate of the step numbered from 0: linear warm-up, then constant or linear towards zero at `total_steps`."""
    warmup = min(1.0, (step + 1) / spec.warmup_steps) if spec.warmup_steps else 1.0
    if not spec.decay or step < spec.warmup_steps:
        return spec.learning_rate * warmup
    remaining = max(total_steps - step, 0) / max(total_steps - spec.warmup_steps, 1)
    return spec.learning_rate * warmup * min(1.0, remaining)


class AdapterOptimiser:
    """AdamW over named parameters. One `step` reads `.grad`, applies or refuses the update, and clears it."""

    def __init__(self, parameters: dict[str, nn.Parameter], spec: OptimiserSpec) -> None:
        self._parameters = parameters
        self._spec = spec
        self._adam = torch.optim.AdamW(
            parameters.values(),
            lr=spec.learning_rate,
            betas=(spec.beta1, spec.beta2),
            eps=ADAM_EPSILON,
            weight_decay=spec.weight_decay,
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
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
        self.clear()
        return float(norm), finite

    def clear(self) -> None:
        self._adam.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Moments under `adam.<field>.<parameter>`; empty before the first update."""
        return {
            f"adam.{field}.{name}": whole(value)
            for name, parameter in self._parameters.items()
            for field, value in self._adam.state[parameter].items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `tensors`; other names are ignored."""
        for name, parameter in self._parameters.items():
            found = {
                field: like(parameter, tensors[f"adam.{field}.{name}"].clone())
                for field in ("step", "exp_avg", "exp_avg_sq")
                if f"adam.{field}.{name}" in tensors
            }
            if found:
                self._adam.state[parameter] = found
            else:
                self._adam.state.pop(parameter, None)
