"""The clipped value loss: values, gradients, metrics and refusals."""

import pytest
import torch

from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.algorithms.value_loss import ValueLossInputs, ValueSums, value_loss


def inputs(current, old, returns, weight=None) -> ValueLossInputs:
    count = len(current)
    return ValueLossInputs(
        current_T=torch.tensor(current, requires_grad=True),
        old_T=torch.tensor(old),
        return_T=torch.tensor(returns, dtype=torch.float64),
        weight_T=torch.full((count,), 1.0) if weight is None else torch.tensor(weight),
        episode_T=torch.arange(count) + 3,
    )


@pytest.mark.parametrize(
    ("current", "old", "target", "loss", "slope", "clipped"),
    [
        (0.1, 0.0, 1.0, 0.5 * 0.81, -0.9, 0),  # inside the bound: plain regression
        (0.5, 0.0, 1.0, 0.5 * 0.64, 0.0, 1),  # moved too far towards the return: held at .2, whose loss is larger
        (-0.5, 0.0, 1.0, 0.5 * 2.25, -1.5, 0),  # moved away from it: the larger, plain loss
        (0.9, 0.0, 0.1, 0.5 * 0.64, 0.8, 0),  # overshot: the plain loss is the larger one
    ],
)
def test_case_by_case(current, old, target, loss, slope, clipped):
    batch = inputs([current], [old], [target])
    found, sums = value_loss(batch, clip=0.2)
    found.backward()
    assert float(found.detach()) == pytest.approx(loss, rel=1e-5)
    assert float(batch.current_T.grad) == pytest.approx(slope, rel=1e-5)
    assert sums.num_clipped == clipped


def test_a_value_inside_the_bound_is_not_counted_for_the_rounding_of_its_difference():
    old, current = torch.tensor([-0.09414368867874146]), torch.tensor([0.059971727430820465])
    assert not torch.equal(old + (current - old), current)
    _, sums = value_loss(inputs(current.tolist(), old.tolist(), [1.0]), clip=0.2)
    assert sums.num_clipped == 0


def test_weights_and_metrics():
    batch = inputs([0.1, 0.2, 0.3], [0.0, 0.5, 1.0], [1.0, 0.0, 1.0], [0.5, 0.25, 0.25])
    loss, sums = value_loss(batch, clip=10.0)
    assert float(loss.detach()) == pytest.approx(0.5 * (0.5 * 0.81 + 0.25 * 0.04 + 0.25 * 0.49), rel=1e-5)
    # Σ(R − V_old)² = 1 + .25 + 0, Σ(R − mean)² = 2/3
    assert sums.metrics()["explained_variance"] == pytest.approx(1 - 1.25 / (2 / 3), rel=1e-6)
    assert ValueSums().metrics()["explained_variance"] == 0.0


def test_sums_add_over_micro_batches():
    whole = value_loss(inputs([0.1, 0.9, 0.3], [0.0, 0.5, 1.0], [1.0, 0.0, 1.0]), clip=0.2)
    parts = [
        value_loss(inputs([0.1], [0.0], [1.0]), clip=0.2),
        value_loss(inputs([0.9, 0.3], [0.5, 1.0], [0.0, 1.0]), clip=0.2),
    ]
    assert float((parts[0][0] + parts[1][0]).detach()) == pytest.approx(float(whole[0].detach()), rel=1e-6)
    assert (parts[0][1] + parts[1][1]).metrics() == pytest.approx(whole[1].metrics())


@pytest.mark.parametrize("field", ["current", "returns"])
def test_a_non_finite_value_or_return_is_refused_naming_its_episode(field: str):
    given = {"current": [0.1, 0.2], "old": [0.0, 0.0], "returns": [1.0, 1.0]}
    given[field] = [0.1, float("nan")]
    with pytest.raises(NonFiniteError, match="episode 4"):
        value_loss(inputs(**given), clip=0.2)
