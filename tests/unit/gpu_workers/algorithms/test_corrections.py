"""Off-policy corrections and mismatch metrics against hand-computed values."""

import math

import pytest
import torch

from gpu_workers.algorithms.corrections import MismatchSums, correct
from gpu_workers.contracts.runspec import AlgorithmSpec, Correction

OLD = torch.tensor([-1.0, -2.0, -0.5])
BEHAVIOUR = torch.tensor([-1.0 - math.log(3.0), -2.0, -0.5 + math.log(2.0)])  # ratios 3, 1, 1/2
EPISODES = torch.tensor([4, 4, 9])
TIS = AlgorithmSpec(correction=Correction.TIS, correction_cap=2.0)


@pytest.mark.parametrize("kind", [Correction.TIS, Correction.DECOUPLED])
def test_tis_truncates_from_above_only(kind: Correction):
    weights, sums = correct(AlgorithmSpec(correction=kind, correction_cap=2.0), OLD, BEHAVIOUR, EPISODES)
    torch.testing.assert_close(weights, torch.tensor([2.0, 1.0, 0.5]))
    assert (sums.num_truncated, sums.num_masked) == (1, 0)


def test_icepop_drops_tokens_outside_its_bounds_and_truncates_nothing():
    spec = AlgorithmSpec(correction=Correction.ICEPOP, icepop_low=0.6, icepop_high=5.0)
    weights, sums = correct(spec, OLD, BEHAVIOUR, EPISODES)
    torch.testing.assert_close(weights, torch.tensor([3.0, 1.0, 0.0]))
    assert (sums.num_truncated, sums.num_masked) == (0, 1)
    edges = torch.tensor([math.log(0.6) - 1e-6, math.log(0.6) + 1e-6, math.log(5.0) - 1e-6, math.log(5.0) + 1e-6])
    weights, _ = correct(spec, edges, torch.zeros(4), torch.zeros(4, dtype=torch.int64))
    assert (weights > 0).tolist() == [False, True, True, False]


def test_no_correction_weighs_one():
    assert correct(AlgorithmSpec(correction=Correction.NONE), OLD, BEHAVIOUR, EPISODES)[0].tolist() == [1.0, 1.0, 1.0]


def test_the_sequence_mask_drops_whole_episodes_by_a_bound_that_shrinks_with_length():
    # Episode 0: 4 tokens, mean .3, .3·√4 = .6. Episode 1: 1 token, .5·√1 = .5. Episode 2: ±.9, mean 0.
    old = torch.tensor([0.3, 0.3, 0.3, 0.3, -0.5, 0.9, -0.9])
    episodes = torch.tensor([0, 0, 0, 0, 1, 2, 2])
    for bound, kept in ((0.61, [1, 1, 1]), (0.55, [0, 1, 1]), (0.4, [0, 0, 1])):
        spec = AlgorithmSpec(correction=Correction.NONE, sequence_mask=bound)
        weights, sums = correct(spec, old, torch.zeros(7), episodes)
        assert weights.tolist() == [float(kept[int(episode)]) for episode in episodes]
        assert sums.num_dropped_episodes == 3 - sum(kept)
        assert sums.metrics()["dropped_episode_share"] == pytest.approx((3 - sum(kept)) / 3)


def test_weights_carry_no_gradient():
    old = OLD.clone().requires_grad_()
    for kind in Correction:
        assert not correct(AlgorithmSpec(correction=kind, sequence_mask=1.0), old, BEHAVIOUR, EPISODES)[0].requires_grad


def test_extreme_differences_stay_finite():
    spec = AlgorithmSpec(correction=Correction.TIS, correction_cap=1e6)
    weights, _ = correct(spec, torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]), EPISODES[:2])
    torch.testing.assert_close(weights, torch.tensor([1e6, math.exp(-20.0)]))


def test_metrics_are_those_before_truncation():
    metrics = correct(TIS, OLD, BEHAVIOUR, EPISODES)[1].metrics()
    assert metrics["logprob_mismatch_mean"] == pytest.approx((math.log(3) + 0 + math.log(2)) / 3, rel=1e-6)
    assert metrics["logprob_mismatch_max"] == pytest.approx(math.log(3), rel=1e-6)
    k3 = (3 - 1 - math.log(3) + 0 + 0.5 - 1 + math.log(2)) / 3
    assert metrics["kl_behaviour_k3"] == pytest.approx(k3, rel=1e-5)
    assert metrics["importance_ratio_max"] == pytest.approx(3.0, rel=1e-6)
    assert metrics["effective_sample_size"] == pytest.approx(4.5**2 / (3 * (9 + 1 + 0.25)), rel=1e-6)
    assert metrics["truncated_share"] == pytest.approx(1 / 3)


def test_sums_add_over_micro_batches():
    whole = correct(TIS, OLD, BEHAVIOUR, EPISODES)[1].metrics()
    parts = [correct(TIS, OLD[part], BEHAVIOUR[part], EPISODES[part])[1] for part in (slice(0, 2), slice(2, 3))]
    assert (parts[0] + parts[1]).metrics() == pytest.approx(whole)
    assert correct(TIS, OLD[:0], BEHAVIOUR[:0], EPISODES[:0])[1] == MismatchSums()
    assert MismatchSums().metrics()["effective_sample_size"] == 0.0
