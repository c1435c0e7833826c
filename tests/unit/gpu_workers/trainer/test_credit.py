"""Credit of a batch's tokens by every kind of advantage, by hand."""

import numpy as np
import pytest

from gpu_workers.contracts.groups import encode_group
from gpu_workers.contracts.runspec import Advantage, Algorithm, AlgorithmSpec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer.batches import TrainBatch, assemble
from gpu_workers.trainer.credit import assign_credit
from tests.unit.gpu_workers.trainer.synthetic import make_episode

# Two groups: tokens sampled 2, 1, 1 with one episode unscored between, and 3, 1.
LENGTHS_AND_REWARDS = {"a": [(2, 1.0), (1, 0.0), (4, None), (1, 0.5)], "b": [(3, 0.0), (1, 2.0)]}


def batch_of(spec: AlgorithmSpec, groups: dict | None = None, **options: bool) -> TrainBatch:
    rng = np.random.default_rng(0)
    made = []
    for name, members in (groups or LENGTHS_AND_REWARDS).items():
        episodes = [make_episode(rng, [5, 6], list(range(7, 7 + count)), reward) for count, reward in members]
        made.append(TrainGroup(name, 0, encode_group(episodes, {})))
    return assemble(made, spec, max_tokens=4, context_length=100, vocab_size=1000, **options)


def test_group_advantages_are_on_every_token_of_an_episode():
    spec = AlgorithmSpec(advantage=Advantage.DR_GRPO)
    batch = batch_of(spec)
    assert [(m.group_id, m.index) for m in batch.members] == [("a", 0), ("a", 1), ("a", 3), ("b", 0), ("b", 1)]
    credit = assign_credit(spec, batch)
    assert credit.advantage_S.tolist() == [0.5, 0.5, -0.5, 0.0, -1.0, -1.0, -1.0, 1.0]
    assert credit.return_S is None


def test_k1_is_taken_off_the_reward_before_siblings_are_compared():
    spec = AlgorithmSpec(advantage=Advantage.DR_GRPO)
    batch = batch_of(spec)
    penalty = np.array([0.2, 0.1, 0.3, 0.0, 0.0, 0.0, 0.0, 1.0])
    credit = assign_credit(spec, batch, penalty_S=penalty)
    # group a: .7, −.3, .5 with mean .3; group b: 0, 1 with mean .5
    np.testing.assert_allclose(credit.advantage_S, [0.4, 0.4, -0.6, 0.2, -0.5, -0.5, -0.5, 0.5])


def test_reinforce_pp_whitens_returns_over_the_batch():
    spec = AlgorithmSpec(advantage=Advantage.REINFORCE_PP)
    returns = np.array([1.0, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 2.0])
    expected = (returns - returns.mean()) / returns.std(ddof=1)
    np.testing.assert_allclose(assign_credit(spec, batch_of(spec)).advantage_S, expected, rtol=1e-6)


def test_gae_gives_returns_and_whitened_advantages():
    spec = AlgorithmSpec(kind=Algorithm.PPO, advantage=Advantage.GAE, gamma=1.0, gae_lambda=1.0)
    values = np.linspace(0.1, 0.8, 8)
    credit = assign_credit(spec, batch_of(spec), value_S=values)
    returns = np.array([1.0, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 2.0])
    np.testing.assert_allclose(credit.return_S, returns)
    plain = returns - values
    np.testing.assert_allclose(credit.advantage_S, (plain - plain.mean()) / plain.std(ddof=1), rtol=1e-6)
    with pytest.raises(ValueError, match="values"):
        assign_credit(spec, batch_of(spec))


FLAT = {"flat": [(1, 1.0), (2, 1.0)], "one": [(1, 0.0), (1, None)], "none": [(1, None)]}


def test_groups_without_spread_or_siblings_by_what_the_algorithm_needs():
    grpo, ppo = AlgorithmSpec(), AlgorithmSpec(kind=Algorithm.PPO, advantage=Advantage.GAE)
    assert batch_of(grpo, FLAT).skipped == {
        "flat": "zero_variance", "one": "too_few_scored", "none": "too_few_scored",
    }  # fmt: skip
    kept = batch_of(grpo, FLAT, drop_zero_variance=False)
    assert kept.skipped == {"one": "too_few_scored", "none": "too_few_scored"}
    assert assign_credit(grpo, kept).advantage_S.tolist() == [0.0, 0.0, 0.0]
    assert batch_of(ppo, FLAT).skipped == {"none": "too_few_scored"}
    assert batch_of(ppo, FLAT).statistics.metrics()["zero_variance_share"] == pytest.approx(1 / 3)


def test_an_empty_batch_has_no_credit():
    assert assign_credit(AlgorithmSpec(), batch_of(AlgorithmSpec(), {"none": [(1, None)]})).advantage_S.size == 0
