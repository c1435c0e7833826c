"""Off-policy corrections and mismatch metrics against hand-computed values."""

import math

import pytest
import torch

from gpu_workers.algorithms.corrections import MismatchSums, correction_weights, mismatch_sums
from gpu_workers.contracts.runspec import Correction

OLD = torch.tensor([-1.0, -2.0, -0.5])
BEHAVIOUR = torch.tensor([-1.0 - math.log(3.0), -2.0, -0.5 + math.log(2.0)])  # ratios 3, 1, 1/2


def test_tis_truncates_from_above_only():
    weights = correction_weights(Correction.TIS, OLD, BEHAVIOUR, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([2.0, 1.0, 0.5]))


def test_no_correction_weighs_one():
    assert correction_weights(Correction.NONE, OLD, BEHAVIOUR, cap=2.0).tolist() == [1.0, 1.0, 1.0]


def test_weights_carry_no_gradient():
    old = OLD.clone().requires_grad_()
    assert not correction_weights(Correction.TIS, old, BEHAVIOUR, cap=2.0).requires_grad


def test_extreme_differences_stay_finite():
    weights = correction_weights(Correction.TIS, torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]), cap=1e30)
    torch.testing.assert_close(weights, torch.tensor([math.exp(20.0), math.exp(-20.0)]))


def test_metrics_are_those_before_truncation():
    metrics = mismatch_sums(OLD, BEHAVIOUR, cap=2.0).metrics()
    assert metrics["logprob_mismatch_mean"] == pytest.approx((math.log(3) + 0 + math.log(2)) / 3, rel=1e-6)
    assert metrics["logprob_mismatch_max"] == pytest.approx(math.log(3), rel=1e-6)
    k3 = (3 - 1 - math.log(3) + 0 + 0.5 - 1 + math.log(2)) / 3
    assert metrics["kl_behaviour_k3"] == pytest.approx(k3, rel=1e-5)
    assert metrics["importance_ratio_max"] == pytest.approx(3.0, rel=1e-6)
    assert metrics["effective_sample_size"] == pytest.approx(4.5**2 / (3 * (9 + 1 + 0.25)), rel=1e-6)
    assert metrics["truncated_share"] == pytest.approx(1 / 3)


def test_sums_add_over_micro_batches():
    whole = mismatch_sums(OLD, BEHAVIOUR, cap=2.0).metrics()
    parts = mismatch_sums(OLD[:1], BEHAVIOUR[:1], cap=2.0) + mismatch_sums(OLD[1:], BEHAVIOUR[1:], cap=2.0)
    assert parts.metrics() == pytest.approx(whole)
    assert mismatch_sums(OLD[:0], BEHAVIOUR[:0], cap=2.0) == MismatchSums()
    assert MismatchSums().metrics()["effective_sample_size"] == 0.0
