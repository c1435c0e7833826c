"""Off-policy corrections: weights for the gap between the engine's log-probs μ and the trainer's π_old.

Sources: truncated importance sampling and IcePop as in the documentation of verl and slime; TIS with clipping around
π_old is decoupled PPO (AReaL, arXiv 2505.24298, section 5.2). KL estimator k3: http://joschu.net/blog/kl-approx.html.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.algorithms.numerics import episode_means, log_ratio
from gpu_workers.algorithms.sums import Sums
from gpu_workers.contracts.runspec import AlgorithmSpec, Correction


@dataclass(frozen=True)
class MismatchSums(Sums):
    """Sums over sampled tokens of π_old against μ before any correction, and what the correction did."""

    num_tokens: int = 0
    abs_difference: float = 0.0
    max_difference: float = 0.0
    k3: float = 0.0
    max_ratio: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    num_truncated: int = 0  # weight at the cap
    num_masked: int = 0  # weight 0
    num_episodes: int = 0
    num_dropped_episodes: int = 0  # by the sequence mask

    def metrics(self) -> dict[str, float]:
        """Means and extremes. The effective sample size is a share of the tokens: (Σk)² / (n·Σk²)."""
        count = max(self.num_tokens, 1)
        effective = self.ratio**2 / (count * self.ratio_squared) if self.ratio_squared > 0 else 0.0
        return {
            "logprob_mismatch_mean": self.abs_difference / count,
            "logprob_mismatch_max": self.max_difference,
            "kl_behaviour_k3": self.k3 / count,
            "importance_ratio_max": self.max_ratio,
            "effective_sample_size": effective,
            "truncated_share": self.num_truncated / count,
            "masked_share": self.num_masked / count,
            "dropped_episode_share": self.num_dropped_episodes / max(self.num_episodes, 1),
        }


def correct(spec: AlgorithmSpec, old_T: Tensor, behaviour_T: Tensor, episode_T: Tensor) -> tuple[Tensor, MismatchSums]:
    """Weight of each token's policy loss, without gradient, and the mismatch before it.

    With k = exp(π_old − μ): none 1; tis (decoupled) min(k, correction_cap); icepop k inside [icepop_low, icepop_high],
    else 0. The sequence mask sets the weights of an episode of n tokens to 0 where |mean(π_old − μ)|·√n exceeds it: the
    mean of n independent differences scatters as 1/√n, so one bound fits short and long episodes.
    """
    if old_T.numel() == 0:
        return torch.zeros(0, dtype=torch.float32, device=old_T.device), MismatchSums()
    difference = log_ratio(old_T.detach(), behaviour_T)
    ratio = difference.exp()
    weight, num_truncated = torch.ones_like(ratio), 0
    if spec.correction in (Correction.TIS, Correction.DECOUPLED):
        weight = ratio.clamp(max=spec.correction_cap)
        num_truncated = int((ratio > spec.correction_cap).sum())
    elif spec.correction is Correction.ICEPOP:
        inside = (ratio >= spec.icepop_low) & (ratio <= spec.icepop_high)
        weight = torch.where(inside, ratio, 0.0)
    episodes = torch.unique(episode_T)
    num_dropped = 0
    if spec.sequence_mask > 0.0:
        mean_T, count_T = episode_means(difference, episode_T)
        dropped = mean_T.abs() * count_T.sqrt() > spec.sequence_mask
        weight = weight.masked_fill(dropped, 0.0)
        num_dropped = len(torch.unique(episode_T[dropped]))
    exact = ratio.double()
    return weight, MismatchSums(
        num_tokens=old_T.numel(),
        abs_difference=float(difference.abs().double().sum()),
        max_difference=float(difference.abs().max()),
        k3=float((exact - 1.0 - difference.double()).sum()),  # of KL(μ‖π_old): samples come from μ
        max_ratio=float(exact.max()),
        ratio=float(exact.sum()),
        ratio_squared=float(exact.square().sum()),
        num_truncated=num_truncated,
        num_masked=int((weight == 0).sum()),
        num_episodes=len(episodes),
        num_dropped_episodes=num_dropped,
    )
