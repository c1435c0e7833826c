"""RunSpecs: what a kind of algorithm implies, and combinations that are refused with the field's path."""

import msgspec
import pytest

from gpu_workers.contracts.runspec import (
    Advantage,
    Aggregation,
    SpecError,
    drops_zero_variance,
    parse_run_spec,
    spec_hash,
)

PLAIN = {"suite": "s", "policy": "p"}


def algorithm(**changes: object):
    return parse_run_spec(PLAIN | {"algorithm": changes}).algorithm


def test_a_kind_brings_what_it_is_by_definition():
    assert algorithm(kind="ppo").advantage is Advantage.GAE
    gspo = algorithm(kind="gspo")
    assert (gspo.aggregation, gspo.clip_low, gspo.clip_high) == (Aggregation.SEQUENCE_MEAN, 3e-4, 4e-4)
    assert algorithm(kind="gspo", clip_low=0.01).clip_low == 0.01
    assert algorithm(kind="grpo").clip_low == 0.2


def test_a_stored_spec_is_read_back_as_it_was():
    for kind in ("grpo", "gspo", "ppo", "sft"):
        spec = parse_run_spec(PLAIN | {"algorithm": {"kind": kind}})
        again = parse_run_spec(msgspec.to_builtins(spec))
        assert again == spec
        assert spec_hash(again) == spec_hash(spec)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"rollout": {"top_p": 0.95}}, "rollout.top_p", "biases"),
        ({"rollout": {"max_staleness": 1}, "algorithm": {"correction": "none"}}, "algorithm.correction", "tis"),
        ({"rollout": {"group_size": 1}}, "rollout.group_size", "at least 2"),
        ({"algorithm": {"kind": "ppo", "advantage": "rloo"}}, "algorithm.advantage", "PPO takes gae"),
        ({"algorithm": {"advantage": "gae"}}, "algorithm.advantage", "kind to ppo"),
        ({"algorithm": {"kind": "gspo", "aggregation": "token_mean"}}, "algorithm.aggregation", "sequence_mean"),
        ({"algorithm": {"kind": "ppo", "value_coefficient": 0}}, "algorithm.value_coefficient", "above 0"),
        ({"algorithm": {"dual_clip": 1.1}}, "algorithm.dual_clip", "above 1 + clip_high"),
        ({"algorithm": {"icepop_low": 5.0}}, "algorithm.icepop_low", "below icepop_high"),
        ({"algorithm": {"clip_low": 1.5}}, "algorithm.clip_low", "below 1"),
        ({"algorithm": {"kl_coefficient": -0.1}}, "algorithm.kl_coefficient", ">= 0"),
        ({"algorithm": {"kind": "dpo"}}, "algorithm.kind", "dpo"),
        ({"algorithm": {"kl": 0.1}}, "algorithm.kl", "unknown field"),
        ({"optimiser": {"decay": True, "schedule": "cosine"}}, "optimiser.decay", "cosine"),
        ({"optimiser": {"beta1": 1.0}}, "optimiser.beta1", "< 1"),
        ({"rollout": {"temperature": 1e-9}}, "rollout.temperature", ">= 0.01"),
        ({"algorithm": {"sft_epochs": 1e6}}, "algorithm.sft_epochs", "<= 1000"),
        ({"trainer": {"update": "half"}}, "trainer.update", "half"),
        ({"trainer": {"max_row_tokens": 2}}, "trainer.max_row_tokens", ">= 16"),
    ],
)
def test_unlawful_specs_are_refused_with_path_and_remedy(changes: dict, path: str, words: str):
    with pytest.raises(SpecError) as caught:
        parse_run_spec(PLAIN | changes)
    assert caught.value.path == path
    assert words in caught.value.message


def test_a_synchronous_run_needs_no_correction_and_supervision_no_group():
    assert parse_run_spec(PLAIN | {"rollout": {"max_staleness": 0}, "algorithm": {"correction": "none"}})
    assert parse_run_spec(PLAIN | {"algorithm": {"kind": "sft"}, "rollout": {"group_size": 1, "top_p": 0.5}})
    assert parse_run_spec(PLAIN | {"algorithm": {"kind": "ppo"}, "rollout": {"group_size": 1}})


def test_groups_without_spread_are_dropped_only_where_siblings_are_compared():
    assert drops_zero_variance(parse_run_spec(PLAIN))
    assert not drops_zero_variance(parse_run_spec(PLAIN | {"rollout": {"dynamic_sampling": False}}))
    assert not drops_zero_variance(parse_run_spec(PLAIN | {"algorithm": {"kind": "ppo"}}))
    assert not drops_zero_variance(parse_run_spec(PLAIN | {"algorithm": {"advantage": "reinforce_pp"}}))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"trainer": {"transfer": "full"}}, "trainer.transfer"),
        ({"trainer": {"update": "full", "transfer": "adapter"}}, "trainer.transfer"),
        ({"trainer": {"update": "full"}, "evaluation": {"dev_every": 1}}, "evaluation.dev_every"),
    ],
)
def test_what_an_update_cannot_be_combined_with_is_refused(changes: dict, path: str):
    with pytest.raises(SpecError) as refused:
        parse_run_spec(PLAIN | changes)
    assert refused.value.path == path
