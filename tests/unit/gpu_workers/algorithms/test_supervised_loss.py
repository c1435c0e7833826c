"""The supervised loss against hand-computed values."""

import pytest
import torch

from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.algorithms.supervised_loss import SupervisedLossInputs, supervised_loss


def test_it_is_the_weighted_negative_log_likelihood():
    current = torch.tensor([-1.0, -3.0], requires_grad=True)
    loss = supervised_loss(SupervisedLossInputs(current, torch.tensor([0.25, 0.75]), torch.tensor([0, 1])))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(2.5)
    torch.testing.assert_close(current.grad, torch.tensor([-0.25, -0.75]))


def test_a_nan_is_refused_naming_the_example():
    bad = SupervisedLossInputs(torch.tensor([-1.0, float("nan")]), torch.ones(2), torch.tensor([0, 4]))
    with pytest.raises(NonFiniteError, match="episode 4"):
        supervised_loss(bad)
