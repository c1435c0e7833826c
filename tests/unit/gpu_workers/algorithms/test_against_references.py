"""Losses and gradients against independent references: TRL's recorded ones, and plain NumPy formulas by episode."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.algorithms.policy_loss import PolicyLossInputs, policy_loss
from gpu_workers.contracts.runspec import Aggregation, Algorithm, AlgorithmSpec, Correction, KlEstimator

RECORDED = json.loads((Path(__file__).parent / "trl" / "losses.json").read_text())
GIVEN = {name: np.array(values, dtype=np.float64) for name, values in RECORDED["tensors"].items()}
MASK = GIVEN["mask"] == 1
ROWS, _ = np.nonzero(MASK)
AGGREGATIONS = {
    "grpo": Aggregation.SEQUENCE_MEAN,
    "bnpo": Aggregation.TOKEN_MEAN,
    "dapo": Aggregation.TOKEN_MEAN,
    "dr_grpo": Aggregation.FIXED_LENGTH,
}


def flat(name: str) -> torch.Tensor:
    return torch.from_numpy(GIVEN[name][MASK]).float()


def ours(spec: AlgorithmSpec) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    current, entropy = (flat(name).requires_grad_() for name in ("current", "entropy"))
    counts = MASK.sum(1).tolist()
    weights = episode_token_weights(spec.aggregation, counts, max_tokens=RECORDED["max_length"])
    loss, _ = policy_loss(
        PolicyLossInputs(
            current_T=current,
            old_T=flat("old"),
            behaviour_T=flat("behaviour"),
            advantage_T=torch.from_numpy(GIVEN["advantage"][ROWS]).float(),
            weight_T=torch.from_numpy(weights[ROWS]),
            episode_T=torch.from_numpy(ROWS),
            reference_T=flat("reference"),
            entropy_T=entropy,
        ),
        spec,
    )
    loss.backward()
    grad_entropy = torch.zeros_like(entropy) if entropy.grad is None else entropy.grad
    return float(loss.detach()), current.grad.double().numpy(), grad_entropy.double().numpy()


@pytest.mark.parametrize("name", list(RECORDED["cases"]))
def test_loss_and_gradient_are_trls(name: str):
    case = RECORDED["cases"][name]
    options = case["options"]
    spec = AlgorithmSpec(
        kind=Algorithm.GSPO if options["level"] == "sequence" else Algorithm.GRPO,
        aggregation=AGGREGATIONS[options["loss_type"]],
        clip_low=options["epsilon_low"],
        clip_high=options["epsilon_high"],
        dual_clip=options["delta"] or 0.0,
        kl_coefficient=options["beta"],
        entropy_coefficient=options["entropy_coef"],
        correction=Correction.TIS if options["correct"] else Correction.NONE,
    )
    loss, grad, grad_entropy = ours(spec)
    assert loss == pytest.approx(case["loss"], rel=1e-5)
    np.testing.assert_allclose(grad, np.array(case["grad_current"])[MASK], atol=1e-6, rtol=1e-4)
    np.testing.assert_allclose(grad_entropy, np.array(case["grad_entropy"])[MASK], atol=1e-7, rtol=1e-5)


def test_the_recorded_cases_clip():
    """A case in which nothing is clipped would say nothing about clipping."""
    ratio = np.exp(GIVEN["current"] - GIVEN["old"])[MASK]
    assert (ratio > 1.3).any() and (ratio < 0.8).any()
    plain, clipped = (np.array(RECORDED["cases"][name]["grad_current"]) for name in ("bnpo", "dual_clip"))
    assert not np.allclose(plain, clipped)


def numpy_loss(spec: AlgorithmSpec, current: NDArray[np.float64]) -> float:
    """The objective as papers write it: a loop over episodes and tokens, float64, nothing shared with the code."""
    episodes, total_tokens = [], int(MASK.sum())
    for row, mask in enumerate(MASK):
        pi, old, mu, ref, entropy = (
            values[row][mask] for values in (current, *(GIVEN[k] for k in ("old", "behaviour", "reference", "entropy")))
        )
        advantage, count = GIVEN["advantage"][row], int(mask.sum())
        sequence_ratio = math.exp(float(np.mean(pi - old)))
        dropped = spec.sequence_mask and abs(float(np.mean(old - mu))) * math.sqrt(count) > spec.sequence_mask
        terms = []
        for t in range(count):
            ratio = sequence_ratio if spec.kind is Algorithm.GSPO else math.exp(pi[t] - old[t])
            bounded = min(max(ratio, 1 - spec.clip_low), 1 + spec.clip_high)
            objective = min(ratio * advantage, bounded * advantage)
            if spec.dual_clip and advantage < 0:
                objective = max(objective, spec.dual_clip * advantage)
            k = math.exp(old[t] - mu[t])
            weight = 1.0
            if spec.correction is Correction.TIS:
                weight = min(k, spec.correction_cap)
            if spec.correction is Correction.ICEPOP:
                weight = k if spec.icepop_low <= k <= spec.icepop_high else 0.0
            delta = ref[t] - pi[t]
            kl = {"k1": 0.0, "k2": delta**2 / 2, "k3": math.exp(delta) - delta - 1}[spec.kl_estimator]
            terms.append(
                -(0.0 if dropped else weight) * objective
                + spec.kl_coefficient * kl
                - spec.entropy_coefficient * entropy[t]
            )
        episodes.append(terms)
    if spec.aggregation is Aggregation.TOKEN_MEAN:
        return sum(map(sum, episodes)) / total_tokens
    if spec.aggregation is Aggregation.FIXED_LENGTH:
        return sum(map(sum, episodes)) / (len(episodes) * RECORDED["max_length"])
    return float(np.mean([np.mean(terms) for terms in episodes]))


SPECS = {
    "grpo": AlgorithmSpec(correction=Correction.NONE, aggregation=Aggregation.SEQUENCE_MEAN),
    "tis": AlgorithmSpec(correction_cap=1.5),
    "icepop": AlgorithmSpec(correction=Correction.ICEPOP, icepop_low=0.8, icepop_high=1.3, clip_high=0.28),
    "sequence mask": AlgorithmSpec(sequence_mask=0.2, aggregation=Aggregation.FIXED_LENGTH),
    "dual clip": AlgorithmSpec(dual_clip=1.25),
    "k2 and entropy": AlgorithmSpec(kl_coefficient=0.3, kl_estimator=KlEstimator.K2, entropy_coefficient=0.1),
    "k3": AlgorithmSpec(kl_coefficient=0.3, aggregation=Aggregation.SEQUENCE_MEAN),
    "gspo": AlgorithmSpec(
        kind=Algorithm.GSPO,
        clip_low=0.05,
        clip_high=0.05,
        aggregation=Aggregation.SEQUENCE_MEAN,
        correction=Correction.NONE,  # with token weights it is the paper's token form, whose value has another slope
    ),
}


@pytest.mark.parametrize("name", list(SPECS))
def test_loss_and_gradient_are_those_of_the_formula(name: str):
    spec = SPECS[name]
    loss, grad, _ = ours(spec)
    assert loss == pytest.approx(numpy_loss(spec, GIVEN["current"]), rel=1e-5)
    numeric = np.zeros_like(GIVEN["current"])
    for place in zip(*np.nonzero(MASK), strict=True):
        step = np.zeros_like(numeric)
        step[place] = 1e-6
        up, down = (numpy_loss(spec, GIVEN["current"] + sign * step) for sign in (1, -1))
        numeric[place] = (up - down) / 2e-6
    np.testing.assert_allclose(grad, numeric[MASK], atol=1e-5, rtol=1e-3)
