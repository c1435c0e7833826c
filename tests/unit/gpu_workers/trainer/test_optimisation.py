"""Learning-rate schedule, refusal of bad gradients, and the optimiser's state across a save."""

import pytest
import torch
from torch import nn

from gpu_workers.contracts.runspec import OptimiserSpec
from gpu_workers.trainer.optimisation import AdapterOptimiser, learning_rate


def test_warm_up_then_constant():
    spec = OptimiserSpec(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(spec, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_never_reaches_zero_within_the_run():
    spec = OptimiserSpec(learning_rate=1.0, warmup_steps=2, decay=True)
    rates = [learning_rate(spec, step, 6) for step in range(7)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def make(value: float = 1.0) -> tuple[dict[str, nn.Parameter], AdapterOptimiser]:
    parameters = {"a": nn.Parameter(torch.full((2,), value)), "b": nn.Parameter(torch.ones(1))}
    return parameters, AdapterOptimiser(parameters, OptimiserSpec(learning_rate=0.1, grad_clip=1.0))


def test_a_step_is_adamw_on_the_clipped_gradient():
    parameters, optimiser = make()
    parameters["a"].grad = torch.tensor([3.0, 4.0])
    norm, applied = optimiser.step(0.1)
    assert (norm, applied) == (5.0, True)
    # The first Adam step moves every coordinate with a gradient by the rate, whatever its size.
    torch.testing.assert_close(parameters["a"].detach(), torch.tensor([0.9, 0.9]))
    assert float(parameters["b"].detach()) == 1.0
    assert parameters["a"].grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_gradient_changes_nothing(bad: float):
    parameters, optimiser = make()
    parameters["a"].grad = torch.tensor([bad, 1.0])
    _, applied = optimiser.step(0.1)
    assert not applied
    assert parameters["a"].tolist() == [1.0, 1.0]
    assert optimiser.tensors() == {}


def test_state_survives_exactly():
    parameters, optimiser = make()
    for number in range(3):
        parameters["a"].grad = torch.tensor([1.0, -0.5]) * (number + 1)
        optimiser.step(0.1)
    copies, other = make()
    with torch.no_grad():
        for name, parameter in copies.items():
            parameter.copy_(parameters[name])
    other.load({name: value.clone() for name, value in optimiser.tensors().items()})
    for pair, chosen in ((parameters, optimiser), (copies, other)):
        pair["a"].grad = torch.tensor([0.3, 0.7])
        chosen.step(0.1)
    assert torch.equal(parameters["a"], copies["a"])
    assert optimiser.tensors().keys() == other.tensors().keys()
