"""Group advantages against values worked out by hand."""

import math

import numpy as np
import pytest

from gpu_workers.algorithms.advantages import group_advantages
from gpu_workers.contracts.runspec import GROUP_ADVANTAGES, Advantage


def test_grpo_divides_by_the_sample_deviation():
    # mean 0.5, Bessel std of [1, 0, 1, 0] = sqrt(1/3)
    result = group_advantages(Advantage.GRPO, [1.0, 0.0, 1.0, 0.0])
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    np.testing.assert_allclose(result.values_E, [expected, -expected, expected, -expected], rtol=1e-12)
    assert result.skip == ""
    assert result.values_E.dtype == np.float64


def test_dr_grpo_only_subtracts_the_mean():
    result = group_advantages(Advantage.DR_GRPO, [1.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(result.values_E, [0.75, -0.25, -0.25, -0.25], rtol=1e-12)


def test_rloo_subtracts_the_mean_of_the_others():
    result = group_advantages(Advantage.RLOO, [1.0, 0.5, 0.0])
    np.testing.assert_allclose(result.values_E, [0.75, 0.0, -0.75], atol=1e-12)


@pytest.mark.parametrize("kind", sorted(GROUP_ADVANTAGES))
def test_an_unscored_episode_is_outside_the_statistics(kind: Advantage):
    with_gap = group_advantages(kind, [1.0, None, 0.0, 0.25])
    without = group_advantages(kind, [1.0, 0.0, 0.25])
    assert math.isnan(with_gap.values_E[1])
    np.testing.assert_array_equal(with_gap.values_E[[0, 2, 3]], without.values_E)
    assert with_gap.num_scored == 3
    assert with_gap.scored_E.tolist() == [True, False, True, True]


@pytest.mark.parametrize("kind", sorted(GROUP_ADVANTAGES))
def test_equal_rewards_give_zero_and_a_reason(kind: Advantage):
    result = group_advantages(kind, [0.7, 0.7 + 1e-10, 0.7])
    assert result.values_E.tolist() == [0.0, 0.0, 0.0]
    assert result.skip == "zero_variance"


@pytest.mark.parametrize("rewards", [[], [1.0], [None, None], [None, 0.5]])
def test_fewer_than_two_scored_episodes_are_not_trained(rewards: list[float | None]):
    assert group_advantages(Advantage.GRPO, rewards).skip == "too_few_scored"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_reward_is_refused(bad: float):
    with pytest.raises(ValueError, match="give None"):
        group_advantages(Advantage.GRPO, [1.0, bad])
