"""The policy loss of PPO, GRPO and GSPO per sampled token, weighted and summed over one micro-batch.

Its parts are files of their own: importance ratio, clip, correction, KL to the reference, entropy bonus.
"""

from dataclasses import dataclass, field

from torch import Tensor

from gpu_workers.algorithms.clipping import ClipSums, clipped_objective
from gpu_workers.algorithms.corrections import MismatchSums, correct
from gpu_workers.algorithms.kl import kl_terms
from gpu_workers.algorithms.numerics import require_finite
from gpu_workers.algorithms.ratios import importance_ratios
from gpu_workers.algorithms.sums import Sums
from gpu_workers.contracts.runspec import AlgorithmSpec, KlEstimator


@dataclass(frozen=True)
class PolicyLossInputs:
    """Sampled tokens (m=1) of a micro-batch of whole episodes, flattened to T. Log-probs include the temperature.

    `weight_T` comes from aggregation and the whole batch's counts; `episode_T` names the episode in errors.
    """

    current_T: Tensor  # π, carries the gradient
    old_T: Tensor  # π_old, recomputed by the trainer before the step
    behaviour_T: Tensor  # μ, from the engine at sampling
    advantage_T: Tensor
    weight_T: Tensor
    episode_T: Tensor
    reference_T: Tensor | None = None  # π_ref; needed with a KL coefficient
    entropy_T: Tensor | None = None  # of π, carries the gradient; needed with an entropy coefficient


@dataclass(frozen=True)
class PolicySums(Sums):
    """What the loss saw, additive; `kl_old` is k3 of KL(π_old‖π), `kl_reference` the estimator's sum."""

    num_tokens: int = 0
    kl_old: float = 0.0
    kl_reference: float = 0.0
    clip: ClipSums = field(default_factory=ClipSums)
    mismatch: MismatchSums = field(default_factory=MismatchSums)

    def metrics(self) -> dict[str, float]:
        count = max(self.num_tokens, 1)
        return self.mismatch.metrics() | {
            "clip_fraction": self.clip.num_clipped / count,
            "clip_fraction_above": self.clip.num_above / count,
            "clip_fraction_below": self.clip.num_below / count,
            "dual_clip_fraction": self.clip.num_dual / count,
            "kl_old_k3": self.kl_old / count,
            "kl_reference": self.kl_reference / count,
        }


def policy_loss(inputs: PolicyLossInputs, spec: AlgorithmSpec) -> tuple[Tensor, PolicySums]:
    """Σ w·(−c·clipped objective + β·KL − α·entropy): this micro-batch's share of the batch's loss, and sums.

    r and its clip after `spec.kind`, c the off-policy correction. Raises NonFiniteError naming the episode. Without
    tokens the loss is 0 and still differentiable.
    """
    _check(inputs, spec)
    ratio = importance_ratios(spec.kind, inputs.current_T, inputs.old_T, inputs.episode_T)
    objective, clip = clipped_objective(
        ratio, inputs.advantage_T.float(), low=spec.clip_low, high=spec.clip_high, dual=spec.dual_clip
    )
    correction, mismatch = correct(spec, inputs.old_T, inputs.behaviour_T, inputs.episode_T)
    per_token = -correction * objective
    kl_reference = 0.0
    if inputs.reference_T is not None:
        kl = kl_terms(spec.kl_estimator, inputs.current_T, inputs.reference_T)
        kl_reference = float(kl.detach().double().sum())
        if spec.kl_estimator is not KlEstimator.K1:  # k1 is in the reward already
            per_token = per_token + spec.kl_coefficient * kl
    if spec.entropy_coefficient > 0.0 and inputs.entropy_T is not None:
        per_token = per_token - spec.entropy_coefficient * inputs.entropy_T.float()
    loss = (inputs.weight_T.float() * per_token).sum()
    kl_old = kl_terms(KlEstimator.K3, inputs.old_T, inputs.current_T).detach().double().sum()
    return loss, PolicySums(len(per_token), float(kl_old), kl_reference, clip, mismatch)


def _check(inputs: PolicyLossInputs, spec: AlgorithmSpec) -> None:
    if spec.kl_coefficient > 0.0 and inputs.reference_T is None:
        raise ValueError("kl_coefficient is above 0, but there are no log-probs of the reference policy")
    if spec.entropy_coefficient > 0.0 and inputs.entropy_T is None:
        raise ValueError("entropy_coefficient is above 0, but there are no entropies")
    for name, values in (
        ("trainer log-prob", inputs.current_T),
        ("old log-prob", inputs.old_T),
        ("behaviour log-prob", inputs.behaviour_T),
        ("advantage", inputs.advantage_T),
        ("reference log-prob", inputs.reference_T),
        ("entropy", inputs.entropy_T),
    ):
        if values is not None:
            require_finite(name, values, inputs.episode_T)
