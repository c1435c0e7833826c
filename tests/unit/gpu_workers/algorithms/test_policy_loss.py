"""The clipped policy loss: values, gradients, clipping, refusals and invariance to the cut into micro-batches."""

import math

import pytest
import torch

from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.algorithms.policy_loss import PolicyLossInputs, PolicySums, policy_loss
from gpu_workers.contracts.runspec import Aggregation, Algorithm, AlgorithmSpec, Correction, KlEstimator

PLAIN = AlgorithmSpec(correction=Correction.NONE)


def inputs(current, old=None, behaviour=None, advantage=None, weight=None, episode=None, **more) -> PolicyLossInputs:
    current = torch.tensor(current, requires_grad=True) if isinstance(current, list) else current
    count = len(current)
    return PolicyLossInputs(
        current_T=current,
        old_T=current.detach() if old is None else torch.tensor(old),
        behaviour_T=current.detach() if behaviour is None else torch.tensor(behaviour),
        advantage_T=torch.ones(count) if advantage is None else torch.tensor(advantage),
        weight_T=torch.full((count,), 1.0 / max(count, 1)) if weight is None else torch.tensor(weight),
        episode_T=torch.zeros(count, dtype=torch.int64) if episode is None else torch.tensor(episode),
        **more,
    )


def test_on_policy_the_gradient_is_minus_advantage_times_weight():
    batch = inputs([-1.0, -2.0], advantage=[2.0, -1.0], weight=[0.25, 0.75])
    loss, sums = policy_loss(batch, PLAIN)
    assert float(loss.detach()) == pytest.approx(-(0.25 * 2.0 - 0.75 * 1.0))
    loss.backward()
    torch.testing.assert_close(batch.current_T.grad, torch.tensor([-0.5, 0.75]))
    assert sums.clip.num_clipped == 0


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.1, 1.0, -1.1, -1.1),  # inside: r·A, d/dπ = r·A
        (1.5, 1.0, -1.2, 0.0),  # above, good: clipped
        (1.5, -1.0, 1.5, 1.5),  # above, bad: the larger loss is kept
        (0.5, 1.0, -0.5, -0.5),  # below, good: kept
        (0.5, -1.0, 0.8, 0.0),  # below, bad: clipped
        (0.5, 0.0, 0.0, 0.0),
    ],
)
def test_clipping_case_by_case(ratio: float, advantage: float, loss: float, slope: float):
    batch = inputs([-1.0 + math.log(ratio)], old=[-1.0], advantage=[advantage])
    value, sums = policy_loss(batch, PLAIN)
    value.backward()
    assert float(value.detach()) == pytest.approx(loss, rel=1e-5)
    assert float(batch.current_T.grad) == pytest.approx(slope, rel=1e-5)
    assert (sums.clip.num_above, sums.clip.num_below) == (int(loss == -1.2), int(loss == 0.8))


def test_the_upper_clip_may_be_wider():
    spec = AlgorithmSpec(correction=Correction.NONE, clip_low=0.2, clip_high=0.28)
    assert float(policy_loss(inputs([math.log(1.5)], old=[0.0]), spec)[0].detach()) == pytest.approx(-1.28)


def test_the_correction_weighs_loss_and_gradient():
    # π_old/μ = 3 truncated to 2, and 1/2.
    batch = inputs([-1.0, -1.0], behaviour=[-1.0 - math.log(3.0), -1.0 + math.log(2.0)], weight=[0.5, 0.5])
    loss, sums = policy_loss(batch, AlgorithmSpec(correction=Correction.TIS, correction_cap=2.0))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-1.25)
    torch.testing.assert_close(batch.current_T.grad, torch.tensor([-1.0, -0.25]))
    assert sums.mismatch.num_truncated == 1


def test_extreme_ratios_stay_finite():
    batch = inputs([-0.1, -900.0], old=[-900.0, -0.1], advantage=[-1.0, 1.0], behaviour=[-900.0, -0.1])
    loss, _ = policy_loss(batch, AlgorithmSpec())
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.5 * (math.exp(20.0) - math.exp(-20.0)), rel=1e-5)
    assert torch.isfinite(batch.current_T.grad).all()


def test_without_tokens_the_loss_is_zero_and_differentiable():
    batch = inputs(torch.zeros(0, requires_grad=True))
    loss, sums = policy_loss(batch, AlgorithmSpec(sequence_mask=1.0))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert sums == PolicySums()
    assert sums.metrics()["clip_fraction"] == 0.0


@pytest.mark.parametrize("field", ["current", "old", "behaviour", "advantage"])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_non_finite_input_is_refused_naming_its_episode(field: str, bad: float):
    values = {"current": [-1.0, -1.0], "old": [-1.0, -1.0], "behaviour": [-1.0, -1.0], "advantage": [1.0, 1.0]}
    values[field] = [-1.0, bad]
    with pytest.raises(NonFiniteError, match="episode 7") as caught:
        policy_loss(inputs(episode=[3, 7], **values), AlgorithmSpec())
    assert caught.value.episode == 7


def test_a_missing_input_is_refused():
    for spec in (AlgorithmSpec(kl_coefficient=0.1), AlgorithmSpec(entropy_coefficient=0.1)):
        with pytest.raises(ValueError, match="coefficient is above 0"):
            policy_loss(inputs([-1.0]), spec)


def test_kl_and_entropy_are_added_outside_clip_and_correction():
    spec = AlgorithmSpec(kl_coefficient=0.5, entropy_coefficient=0.25, correction_cap=2.0)
    current, entropy = [-1.0, -1.0], torch.tensor([0.3, 0.7], requires_grad=True)
    reference = torch.tensor([-1.0 + math.log(2.0), -1.0 - math.log(2.0)])
    batch = inputs(current, behaviour=[-9.0, -9.0], weight=[0.5, 0.5], reference_T=reference, entropy_T=entropy)
    loss, sums = policy_loss(batch, spec)
    loss.backward()
    k3 = [2.0 - math.log(2.0) - 1.0, 0.5 + math.log(2.0) - 1.0]
    assert float(loss.detach()) == pytest.approx(-2.0 + 0.5 * 0.5 * sum(k3) - 0.25 * 0.5 * 1.0, rel=1e-5)
    # d k3 / dπ = 1 − exp(Δ); the policy term is the truncated weight 2 times the advantage 1.
    torch.testing.assert_close(batch.current_T.grad, torch.tensor([-1.0 + 0.25 * -1.0, -1.0 + 0.25 * 0.5]))
    torch.testing.assert_close(entropy.grad, torch.tensor([-0.125, -0.125]))
    assert sums.kl_reference == pytest.approx(sum(k3), rel=1e-5)


def test_k1_is_no_part_of_the_loss():
    spec = AlgorithmSpec(kl_coefficient=0.5, kl_estimator=KlEstimator.K1)
    loss, sums = policy_loss(inputs([-1.0], reference_T=torch.tensor([-3.0])), spec)
    assert float(loss.detach()) == -1.0
    assert sums.kl_reference == pytest.approx(2.0)


LENGTHS = [1, 5, 0, 9, 2]  # a one-token and an all-masked episode among them
EPISODE = torch.repeat_interleave(torch.arange(5), torch.tensor(LENGTHS))
SPECS = {
    "grpo": AlgorithmSpec(),
    "gspo": AlgorithmSpec(kind=Algorithm.GSPO, clip_low=0.03, clip_high=0.04),
    "dapo": AlgorithmSpec(clip_high=0.28, dual_clip=3.0, entropy_coefficient=0.01),
    "icepop": AlgorithmSpec(correction=Correction.ICEPOP, icepop_low=0.8, icepop_high=1.25, sequence_mask=0.6),
    "kl": AlgorithmSpec(kl_coefficient=0.1, kl_estimator=KlEstimator.K2),
}


def random_batch(seed: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(17, generator=generator)

    values = -torch.rand(17, generator=generator) * 3
    return {
        "current": values,
        "old": values + noise(0.3),
        "behaviour": values + noise(0.3),
        "reference": values + noise(0.5),
        "entropy": values.abs() + 0.1,
        "advantage": torch.randn(5, generator=generator)[EPISODE],
    }


def run(spec: AlgorithmSpec, weights: torch.Tensor, parts: list[torch.Tensor]) -> tuple[float, torch.Tensor, object]:
    made = random_batch()
    current = made["current"].clone().requires_grad_()
    total, sums = 0.0, PolicySums()
    for chosen in parts:
        loss, part = policy_loss(
            PolicyLossInputs(
                current[chosen], made["old"][chosen], made["behaviour"][chosen], made["advantage"][chosen],
                weights[chosen], EPISODE[chosen], made["reference"][chosen], made["entropy"][chosen],
            ),
            spec,
        )  # fmt: skip
        loss.backward()
        total, sums = total + float(loss.detach()), sums + part
    return total, current.grad, sums


@pytest.mark.parametrize("name", list(SPECS))
@pytest.mark.parametrize("kind", list(Aggregation))
@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_any_cut_into_micro_batches_gives_one_loss_gradient_and_metrics(name: str, kind: Aggregation, num_parts: int):
    weights = torch.from_numpy(episode_token_weights(kind, LENGTHS, max_tokens=12))[EPISODE]
    parts = [torch.isin(EPISODE, episodes).nonzero()[:, 0] for episodes in torch.arange(5).chunk(num_parts)]
    whole = run(SPECS[name], weights, [torch.arange(17)])
    cut = run(SPECS[name], weights, parts)
    assert cut[0] == pytest.approx(whole[0], rel=1e-5)
    torch.testing.assert_close(cut[1], whole[1])
    assert cut[2].metrics() == pytest.approx(whole[2].metrics(), rel=1e-6)


@pytest.mark.parametrize("num_parts", [2, 7, 17])
def test_token_losses_may_be_cut_inside_an_episode_too(num_parts: int):
    weights = torch.from_numpy(episode_token_weights(Aggregation.TOKEN_MEAN, LENGTHS))[EPISODE]
    whole = run(SPECS["grpo"], weights, [torch.arange(17)])
    cut = run(SPECS["grpo"], weights, list(torch.arange(17).chunk(num_parts)))
    assert cut[0] == pytest.approx(whole[0], rel=1e-5)
    torch.testing.assert_close(cut[1], whole[1])
