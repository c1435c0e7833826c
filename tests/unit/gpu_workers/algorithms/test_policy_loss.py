"""The clipped policy loss: values, gradients, clipping, refusals and invariance to the cut into micro-batches."""

import math

import pytest
import torch

from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.algorithms.policy_loss import PolicyLossInputs, policy_loss
from gpu_workers.contracts.runspec import Aggregation, AlgorithmSpec, Correction

PLAIN = AlgorithmSpec(correction=Correction.NONE)


def inputs(current, old=None, behaviour=None, advantage=None, weight=None, episode=None) -> PolicyLossInputs:
    current = torch.tensor(current, requires_grad=True) if isinstance(current, list) else current
    count = len(current)
    return PolicyLossInputs(
        current_T=current,
        old_T=current.detach() if old is None else torch.tensor(old),
        behaviour_T=current.detach() if behaviour is None else torch.tensor(behaviour),
        advantage_T=torch.ones(count) if advantage is None else torch.tensor(advantage),
        weight_T=torch.full((count,), 1.0 / max(count, 1)) if weight is None else torch.tensor(weight),
        episode_T=torch.zeros(count, dtype=torch.int64) if episode is None else torch.tensor(episode),
    )


def test_on_policy_the_gradient_is_minus_advantage_times_weight():
    batch = inputs([-1.0, -2.0], advantage=[2.0, -1.0], weight=[0.25, 0.75])
    result = policy_loss(batch, PLAIN)
    assert float(result.loss.detach()) == pytest.approx(-(0.25 * 2.0 - 0.75 * 1.0))
    result.loss.backward()
    torch.testing.assert_close(batch.current_T.grad, torch.tensor([-0.5, 0.75]))
    assert result.num_clipped == 0


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
    result = policy_loss(batch, PLAIN)
    result.loss.backward()
    assert float(result.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert float(batch.current_T.grad) == pytest.approx(slope, rel=1e-5)
    assert result.num_clipped == int(loss in (-1.2, 0.8))


def test_the_upper_clip_may_be_wider():
    spec = AlgorithmSpec(correction=Correction.NONE, clip_low=0.2, clip_high=0.28)
    assert float(policy_loss(inputs([math.log(1.5)], old=[0.0]), spec).loss.detach()) == pytest.approx(-1.28)


def test_the_correction_weighs_loss_and_gradient():
    # π_old/μ = 3 truncated to 2, and 1/2.
    batch = inputs([-1.0, -1.0], behaviour=[-1.0 - math.log(3.0), -1.0 + math.log(2.0)], weight=[0.5, 0.5])
    result = policy_loss(batch, AlgorithmSpec(correction=Correction.TIS, correction_cap=2.0))
    result.loss.backward()
    assert float(result.loss.detach()) == pytest.approx(-1.25)
    torch.testing.assert_close(batch.current_T.grad, torch.tensor([-1.0, -0.25]))
    assert result.mismatch.num_truncated == 1


def test_extreme_ratios_stay_finite():
    batch = inputs([-0.1, -900.0], old=[-900.0, -0.1], advantage=[-1.0, 1.0], behaviour=[-900.0, -0.1])
    result = policy_loss(batch, AlgorithmSpec())
    result.loss.backward()
    assert float(result.loss.detach()) == pytest.approx(0.5 * (math.exp(20.0) - math.exp(-20.0)), rel=1e-5)
    assert torch.isfinite(batch.current_T.grad).all()


def test_without_tokens_the_loss_is_zero_and_differentiable():
    batch = inputs(torch.zeros(0, requires_grad=True))
    result = policy_loss(batch, AlgorithmSpec())
    result.loss.backward()
    assert float(result.loss.detach()) == 0.0
    assert result.mismatch.num_tokens == 0


@pytest.mark.parametrize("field", ["current", "old", "behaviour", "advantage"])
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_non_finite_input_is_refused_naming_its_episode(field: str, bad: float):
    values = {"current": [-1.0, -1.0], "old": [-1.0, -1.0], "behaviour": [-1.0, -1.0], "advantage": [1.0, 1.0]}
    values[field] = [-1.0, bad]
    with pytest.raises(NonFiniteError, match="episode 7") as caught:
        policy_loss(inputs(episode=[3, 7], **values), AlgorithmSpec())
    assert caught.value.episode == 7


@pytest.mark.parametrize("kind", list(Aggregation))
@pytest.mark.parametrize("num_parts", [1, 2, 7])
def test_any_cut_into_micro_batches_gives_one_loss_and_gradient(kind: Aggregation, num_parts: int):
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 5, 0, 9, 2]  # a one-token and an all-masked episode among them
    episode = torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))
    weights = torch.from_numpy(episode_token_weights(kind, lengths, max_tokens=12))[episode]
    values = -torch.rand(17, generator=generator) * 3
    old, behaviour = values + 0.3 * torch.randn(17, generator=generator), values + 0.2
    advantage = torch.randn(5, generator=generator)[episode]

    def total(parts: int) -> tuple[float, torch.Tensor]:
        current = values.clone().requires_grad_()
        loss = 0.0
        for chosen in torch.arange(17).chunk(parts):
            batch = PolicyLossInputs(
                current[chosen], old[chosen], behaviour[chosen], advantage[chosen], weights[chosen], episode[chosen]
            )
            result = policy_loss(batch, AlgorithmSpec())
            result.loss.backward()
            loss += float(result.loss.detach())
        return loss, current.grad

    whole, cut = total(1), total(num_parts)
    assert cut[0] == pytest.approx(whole[0], rel=1e-5)
    torch.testing.assert_close(cut[1], whole[1])
