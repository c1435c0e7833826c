"""GAE, REINFORCE++ returns and whitening against hand-computed values and an independent formula."""

import numpy as np
import pytest

from gpu_workers.algorithms.returns import gae, rewards_to_go, token_rewards, whiten


def test_gae_by_hand():
    # γ = .5, λ = .5: δ = [0 + .5·2 − 1, 0 + .5·4 − 2, 3 − 4] = [0, 0, −1]; A = [−.0625, −.25, −1].
    advantages, returns = gae(np.array([0.0, 0.0, 3.0]), np.array([1.0, 2.0, 4.0]), gamma=0.5, lam=0.5)
    assert advantages.tolist() == [-0.0625, -0.25, -1.0]
    assert returns.tolist() == [0.9375, 1.75, 3.0]


def test_with_gamma_and_lambda_1_the_return_is_the_reward_to_come():
    rewards, values = np.array([0.5, 0.0, 1.0]), np.array([0.3, -0.2, 0.9])
    advantages, returns = gae(rewards, values, gamma=1.0, lam=1.0)
    np.testing.assert_allclose(returns, [1.5, 1.0, 1.0])
    np.testing.assert_allclose(advantages, np.array([1.5, 1.0, 1.0]) - values)


def test_with_lambda_0_it_is_the_temporal_difference():
    advantages, _ = gae(np.array([0.0, 2.0]), np.array([1.0, 3.0]), gamma=0.9, lam=0.0)
    np.testing.assert_allclose(advantages, [0.9 * 3 - 1, 2 - 3])


def test_it_is_the_double_sum_of_the_paper():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=7), rng.normal(size=7)
    gamma, lam, next_values = 0.97, 0.9, np.append(values[1:], 0.0)
    delta = rewards + gamma * next_values - values
    expected = [sum((gamma * lam) ** k * delta[t + k] for k in range(7 - t)) for t in range(7)]
    np.testing.assert_allclose(gae(rewards, values, gamma=gamma, lam=lam)[0], expected)


def test_arrays_that_disagree_are_refused_and_empty_ones_are_fine():
    with pytest.raises(ValueError, match="one of each"):
        gae(np.zeros(2), np.zeros(3), gamma=1.0, lam=1.0)
    assert gae(np.zeros(0), np.zeros(0), gamma=1.0, lam=1.0)[0].size == 0
    assert token_rewards(1.0, 0).size == 0


def test_the_reward_is_at_the_last_token_and_a_penalty_at_each():
    assert token_rewards(2.0, 3).tolist() == [0.0, 0.0, 2.0]
    rewards = token_rewards(2.0, 3, np.array([0.1, -0.2, 0.5]))
    np.testing.assert_allclose(rewards, [-0.1, 0.2, 1.5])
    np.testing.assert_allclose(rewards_to_go(rewards), [1.6, 1.7, 1.5])


def test_whitening_is_over_all_tokens_of_the_batch():
    whitened = whiten([np.array([1.0, 1.0, 1.0]), np.array([5.0])])
    # mean 2, Bessel std 2: long episodes weigh more.
    np.testing.assert_allclose(whitened[0], [-0.5] * 3)
    np.testing.assert_allclose(whitened[1], [1.5])
    assert [values.tolist() for values in whiten([np.array([3.0, 3.0]), np.array([3.0])])] == [[0.0, 0.0], [0.0]]
    assert whiten([]) == []
    assert whiten([np.array([4.0])])[0].tolist() == [0.0]
