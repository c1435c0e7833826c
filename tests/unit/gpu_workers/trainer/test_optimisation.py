"""Learning-rate schedule, refusal of bad gradients, and the optimiser's state across a save."""

import math

import pytest
import torch
from torch import nn

from gpu_workers.contracts.runspec import OptimiserSpec, Schedule
from gpu_workers.trainer.optimisation import Optimiser, learning_rate


def test_warm_up_then_constant():
    spec = OptimiserSpec(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(spec, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_never_reaches_zero_within_the_run():
    spec = OptimiserSpec(learning_rate=1.0, warmup_steps=2, decay=True)
    rates = [learning_rate(spec, step, 6) for step in range(7)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_cosine_and_the_share_a_schedule_ends_at():
    spec = OptimiserSpec(learning_rate=1.0, warmup_steps=1, schedule=Schedule.COSINE, min_rate_share=0.2)
    rates = [learning_rate(spec, step, 5) for step in range(7)]
    halves = [0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(5)]
    assert rates == pytest.approx([1.0, *[0.2 + 0.8 * half for half in halves[0:]][0:5], 0.2])
    line = OptimiserSpec(learning_rate=2.0, warmup_steps=0, schedule=Schedule.LINEAR, min_rate_share=0.5)
    assert [learning_rate(line, step, 4) for step in (0, 2, 4)] == pytest.approx([2.0, 1.5, 1.0])


def test_weight_decay_acts_on_matrices_only():
    parameters = {"matrix": nn.Parameter(torch.ones(2, 2)), "norm": nn.Parameter(torch.ones(2))}
    Optimiser(parameters, OptimiserSpec(learning_rate=0.1, weight_decay=0.5)).step(0.1)
    assert parameters["matrix"].detach().flatten().tolist() == pytest.approx([0.95] * 4)
    assert parameters["norm"].tolist() == [1.0, 1.0]


def make(value: float = 1.0) -> tuple[dict[str, nn.Parameter], Optimiser]:
    parameters = {"a": nn.Parameter(torch.full((2,), value)), "b": nn.Parameter(torch.ones(1))}
    return parameters, Optimiser(parameters, OptimiserSpec(learning_rate=0.1, grad_clip=1.0))


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
    assert optimiser.moments() == {}


def test_state_survives_exactly():
    parameters, optimiser = make()
    for number in range(3):
        parameters["a"].grad = torch.tensor([1.0, -0.5]) * (number + 1)
        optimiser.step(0.1)
    copies, other = make()
    with torch.no_grad():
        for name, parameter in copies.items():
            parameter.copy_(parameters[name])
    assert other.empty_moments().keys() == optimiser.moments().keys()
    other.restore({name: value.clone() for name, value in optimiser.moments().items()}, num_updates=3)
    for pair, chosen in ((parameters, optimiser), (copies, other)):
        pair["a"].grad = torch.tensor([0.3, 0.7])
        chosen.step(0.1)
    assert torch.equal(parameters["a"], copies["a"])
    assert optimiser.moments().keys() == other.moments().keys()
