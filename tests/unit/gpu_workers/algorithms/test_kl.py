"""KL estimators: values, gradients, and that k1 and k3 estimate the divergence."""

import math

import pytest
import torch

from gpu_workers.algorithms.kl import kl_terms
from gpu_workers.contracts.runspec import KlEstimator


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [  # Δ = π_ref − π = ln 2
        (KlEstimator.K1, -math.log(2), 1.0),
        (KlEstimator.K2, math.log(2) ** 2 / 2, -math.log(2)),
        (KlEstimator.K3, 2 - math.log(2) - 1, -1.0),
    ],
)
def test_value_and_gradient(kind: KlEstimator, value: float, slope: float):
    current = torch.tensor([-1.0], requires_grad=True)
    terms = kl_terms(kind, current, torch.tensor([-1.0 + math.log(2)]))
    terms.sum().backward()
    assert float(terms.detach()) == pytest.approx(value, rel=1e-6)
    assert float(current.grad) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("kind", list(KlEstimator))
def test_equal_policies_have_none_and_extremes_stay_finite(kind: KlEstimator):
    assert kl_terms(kind, torch.tensor([-3.0]), torch.tensor([-3.0])).tolist() == [0.0]
    assert torch.isfinite(kl_terms(kind, torch.tensor([-900.0, -0.1]), torch.tensor([-0.1, -900.0]))).all()


def test_k1_and_k3_have_the_divergence_as_their_mean():
    pi, ref = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    exact = float((pi * (pi / ref).log()).sum())
    for kind in (KlEstimator.K1, KlEstimator.K3):
        assert float((pi * kl_terms(kind, pi.log(), ref.log())).sum()) == pytest.approx(exact, rel=1e-5)


def test_the_mean_gradient_of_k1_as_a_loss_is_zero_and_that_of_k2_is_the_divergence_s():
    logits = torch.tensor([0.4, -0.2, 0.1], requires_grad=True)
    ref = torch.tensor([0.2, 0.5, 0.3]).log()
    log_p = logits.log_softmax(-1)
    exact = torch.autograd.grad((log_p.exp() * (log_p - ref)).sum(), logits, retain_graph=True)[0]
    for kind, wanted in ((KlEstimator.K1, torch.zeros(3)), (KlEstimator.K2, exact)):
        loss = (log_p.exp().detach() * kl_terms(kind, log_p, ref)).sum()
        found = torch.autograd.grad(loss, logits, retain_graph=True)[0]
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)
