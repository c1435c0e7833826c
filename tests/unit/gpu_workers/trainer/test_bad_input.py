"""What no batch should hold: each is refused with its episode named, and the rest of the batch trains as if alone.
And what is odd but lawful: every algorithm takes it and stays finite."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from gpu_workers.contracts.groups import EpisodeTokens, encode_group
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from tests.unit.gpu_workers.trainer.synthetic import make_episode, make_groups, make_spec

RNG = np.random.default_rng(0)


def a_group(name: str = "bad") -> TrainGroup:
    """Two episodes of a prompt of two tokens and two sampled ones."""
    episodes = [make_episode(RNG, [5, 6], [7 + index, 9], float(index)) for index in range(2)]
    return TrainGroup(name, 0, encode_group(episodes, {}))


def spoilt(changes: dict[str, tuple[int, float]]) -> TrainGroup:
    """A group's file with single entries of its arrays changed, as no worker writes it."""
    arrays = {name: array.copy() for name, array in load(a_group().file).items()}
    for name, (place, value) in changes.items():
        arrays[name][place] = value
    return TrainGroup("bad", 0, save(arrays))


BAD: dict[str, tuple[dict[str, tuple[int, float]], str]] = {
    "an infinite reward": ({"rewards": (1, np.inf)}, "episode 1: reward is inf, not a number within ±1e+06"),
    "a reward beyond sense": ({"rewards": (1, -1e30)}, "episode 1: reward is -1e+30, not a number within ±1e+06"),
    "a log-prob that is no number": ({"logprobs": (3, np.nan)}, "episode 0: a behaviour log-prob is NaN or infinite"),
    "a log-prob of no chance": ({"logprobs": (3, -np.inf)}, "episode 0: a behaviour log-prob is NaN or infinite"),
    "a probability above 1": ({"logprobs": (7, 0.5)}, "episode 1: behaviour log-prob 0.5 is above 0"),
    "a token the model has not": (
        {"tokens": (6, 99_999)},
        "episode 1: token 99999 is not in the model's vocabulary of",
    ),
    "a token below 0": ({"tokens": (2, -3)}, "episode 0: token -3 is none"),
    "a mask of 2": ({"mask": (2, 2)}, "episode 0: the mask has an entry that is neither 0 nor 1"),
    "a sampled first token": (
        {"mask": (0, 1), "versions": (0, 0)},
        "episode 0: must start with a prompt token (mask 0)",
    ),
    "a token of no version": ({"versions": (2, -1)}, "episode 0: a sampled token has no policy version"),
    "episodes that overlap": ({"offsets": (1, 9)}, "offsets of 3 entries do not cut 8 tokens into episodes"),
    "episodes that start late": ({"offsets": (0, 2)}, "offsets of 3 entries do not cut 8 tokens into episodes"),
    "episodes that end early": ({"offsets": (2, 7)}, "offsets of 3 entries do not cut 8 tokens into episodes"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_group_that_cannot_be_used_is_named_and_the_others_train_as_if_alone(base: BaseModel, name: str):
    changes, reason = BAD[name]
    good = make_groups(1, num_groups=1)
    trainer, alone = PolicyTrainer(make_spec(), base), PolicyTrainer(make_spec(), base)
    metrics, skipped = trainer.step("b", [spoilt(changes), *good])
    alone.step("b", good)
    assert skipped.keys() == {"bad"}
    assert skipped["bad"].startswith(f"rejected: {reason}"), skipped
    assert metrics["train/skipped_updates"] == 0.0
    for key, value in trainer.policy.parameters.items():
        assert torch.equal(value, alone.policy.parameters[key])


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("mask", lambda a: a * np.float32(0.5), "array mask is float32 of shape (8,), a row of uint8 is needed"),
        ("mask", lambda a: -a.astype(np.int8), "array mask is int8 of shape (8,), a row of uint8 is needed"),
        ("tokens", lambda a: a[:, None], "array tokens is int32 of shape (8, 1), a row of int32 is needed"),
        ("rewards", lambda a: a[:, None], "array rewards is float64 of shape (2, 1), a row of float64 is needed"),
        ("offsets", lambda a: a.astype(np.float64), "array offsets is float64 of shape (3,), a row of int64 is needed"),
        ("logprobs", lambda a: np.repeat(a, 2), "array logprobs has 16 entries, tokens 8"),
        ("versions", lambda a: None, "array versions is missing, a row of int32 is needed"),
    ],
)
def test_a_file_of_other_arrays_is_rejected_and_the_others_train(base: BaseModel, name, change, reason):
    arrays = {key: array.copy() for key, array in load(a_group().file).items()}
    arrays[name] = change(arrays[name])
    file = save({key: np.ascontiguousarray(array) for key, array in arrays.items() if array is not None})
    metrics, skipped = PolicyTrainer(make_spec(), base).step("b", [TrainGroup("bad", 0, file), *make_groups(1)])
    assert skipped == {"bad": f"rejected: {reason}"}
    assert metrics["train/skipped_updates"] == 0.0


def silent(reward: float) -> EpisodeTokens:
    """An episode in which the policy said nothing."""
    return EpisodeTokens(
        np.array([5, 6], np.int32), np.zeros(2, np.uint8), np.zeros(2, np.float32), np.full(2, -1, np.int32), reward
    )


def group(name: str, *episodes: EpisodeTokens) -> TrainGroup:
    return TrainGroup(name, 0, encode_group(list(episodes), {}))


def one(completion: list[int], reward: float | None, prompt: tuple[int, ...] = (5, 6)) -> EpisodeTokens:
    return make_episode(np.random.default_rng(1), list(prompt), completion, reward)


def with_logprob(logprob: float, reward: float) -> EpisodeTokens:
    episode = one([7, 8], reward)
    episode.logprobs[2:] = logprob
    return episode


ODD: dict[str, list[TrainGroup]] = {
    "an empty answer among others": [group("a", silent(0.0), one([7, 8], 1.0), one([9], 0.0))],
    "only empty answers": [group("a", silent(0.0), silent(1.0))],
    "only empty answers beside a good group": [group("a", silent(0.0), silent(1.0)), *make_groups(1, num_groups=1)],
    "a group of one": [group("a", one([7, 8], 1.0))],
    "a group of one beside a good group": [group("a", one([7, 8], 1.0)), *make_groups(1, num_groups=1)],
    "answers of one token": [group("a", one([7], 1.0), one([8], 0.0))],
    "equal answers, other rewards": [group("a", one([7, 8], 1.0), one([7, 8], 0.0))],
    "groups of odd sizes": [
        group("a", *(one([7 + i], float(i % 2)) for i in range(7))),
        group("b", *(one([7 + i, 3], float(i % 2), (9,)) for i in range(3))),
    ],
    "nobody has a reward": [group("a", one([7], None), one([8], None))],
    "one has no reward": [group("a", one([7], None), one([8], 1.0), one([9], 0.0))],
    "the largest rewards": [group("a", one([7], 1e6), one([8], -1e6), one([9], 0.0))],
    "the smallest spread": [group("a", one([7], 1.0), one([8], 1.0 + 1e-15))],
    "a policy from another world": [group("a", with_logprob(-1e30, 1.0), with_logprob(-500.0, 0.0))],
    "a policy that was certain": [group("a", with_logprob(0.0, 1.0), with_logprob(1e-7, 0.0))],
    "no group at all": [],
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"advantage": "dr_grpo", "aggregation": "fixed_length"},
    "rloo, k1": {"advantage": "rloo", "kl_coefficient": 0.1, "kl_estimator": "k1"},
    "reinforce++, icepop, sequence mask": {"advantage": "reinforce_pp", "correction": "icepop", "sequence_mask": 1.0},
    "gspo": {"kind": "gspo"},
    "ppo": {"kind": "ppo", "gae_lambda": 0.9},
    "k3, entropy, dual clip": {"kl_coefficient": 0.1, "entropy_coefficient": 0.01, "dual_clip": 3.0},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", list(ODD))
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_odd_batches_leave_every_number_finite(base: BaseModel, name: str, algorithm: str):
    spec = make_spec(
        algorithm=ALGORITHMS[algorithm] | {"num_updates_per_batch": 2},
        optimiser={"learning_rate": 1e-3, "warmup_steps": 0},
    )
    whole, cut = (PolicyTrainer(spec, base, max_row_tokens=limit) for limit in (1000, 3))
    metrics, skipped = whole.step("b", ODD[name])
    others, skipped_too = cut.step("b", ODD[name])
    assert skipped == skipped_too
    assert whole.version == 1 and whole.group_ids == [[group.group_id for group in ODD[name]]]
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert all(bool(torch.isfinite(value).all()) for value in whole.policy.parameters.values())
    for key in ("train/loss", "train/entropy", "train/reward_mean", "train/skipped_updates"):
        if key in metrics:
            assert others[key] == pytest.approx(metrics[key], rel=2e-3, abs=2e-5), key
