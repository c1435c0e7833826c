"""The trainer's step under each algorithm: reference policy, value function, entropy, and who is at fault."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_workers.contracts.groups import encode_group
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer import sharded
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.batches import assemble
from gpu_workers.trainer.checkpoints import CheckpointError
from gpu_workers.trainer.packing import pack
from gpu_workers.trainer.sharded import ShardError, load_sharded
from gpu_workers.trainer.world import ALONE
from tests.unit.gpu_workers.trainer.synthetic import make_episode, make_groups, make_spec

ALGORITHMS: dict[str, dict[str, object]] = {
    "gspo": {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1},
    "ppo": {"kind": "ppo", "gae_lambda": 0.9},
    "reinforce++ with k1": {"advantage": "reinforce_pp", "kl_coefficient": 0.1, "kl_estimator": "k1"},
    "rloo with k1": {"advantage": "rloo", "kl_coefficient": 0.1, "kl_estimator": "k1"},
    "dapo": {"clip_high": 0.28, "dual_clip": 3.0, "entropy_coefficient": 0.01},
    "kl": {"kl_coefficient": 0.1, "aggregation": "sequence_mean", "correction": "icepop"},
}


@pytest.mark.parametrize("name", list(ALGORITHMS))
@pytest.mark.parametrize("update", ["lora", "full"])
def test_the_cut_into_rows_changes_nothing(base: BaseModel, name: str, update: str):
    spec = make_spec(
        algorithm=ALGORITHMS[name] | {"num_updates_per_batch": 2},
        trainer={"update": update},
        optimiser={"learning_rate": 1e-3 if update == "lora" else 1e-4, "warmup_steps": 0},
    )
    groups = make_groups(4, turns=2)
    steps = [PolicyTrainer(spec, base, max_row_tokens=limit).step("b", groups)[0] for limit in (1000, 70, 30)]
    assert steps[0]["train/num_packed_tokens"] < steps[1]["train/num_packed_tokens"]
    assert steps[0]["train/grad_norm"] > 0.0
    volatile = {"train/step_seconds", "train/tokens_per_second", "train/num_packed_tokens"}
    for other in steps[1:]:
        for metric in steps[0].keys() - volatile:
            assert other[metric] == pytest.approx(steps[0][metric], rel=2e-3, abs=2e-5), metric


def test_at_the_start_there_is_no_distance_to_the_reference_and_a_term_holds_the_policy_near(base: BaseModel):
    moved = {}
    for coefficient in (1e-6, 20.0):
        spec = make_spec(algorithm={"kl_coefficient": coefficient})
        trainer = PolicyTrainer(spec, base)
        first = trainer.step("b0", make_groups(0))[0]
        assert first["train/kl_reference"] == pytest.approx(0.0, abs=1e-7)
        for number in range(1, 8):
            last = trainer.step(f"b{number}", make_groups(0))[0]
        moved[coefficient] = last["train/kl_reference"]
    assert 0.0 < moved[20.0] < 0.5 * moved[1e-6]


def test_the_reference_after_a_resume_is_where_the_run_started(base: BaseModel, tmp_path: Path):
    spec = make_spec(algorithm={"kl_coefficient": 0.1})
    straight = PolicyTrainer(spec, base)
    for number in range(2):
        straight.step(f"b{number}", make_groups(number))
    straight.save(tmp_path)
    resumed = PolicyTrainer(spec, base)
    resumed.load(tmp_path)
    left, right = (trainer.step("b2", make_groups(2))[0] for trainer in (straight, resumed))
    assert left["train/kl_reference"] > 1e-4
    assert right["train/kl_reference"] == left["train/kl_reference"]


def test_an_entropy_bonus_raises_entropy(base: BaseModel):
    found = {}
    for coefficient in (0.0, 5.0):
        trainer = PolicyTrainer(make_spec(algorithm={"entropy_coefficient": coefficient}), base)
        for number in range(8):
            metrics = trainer.step(f"b{number}", make_groups(0))[0]
        found[coefficient] = metrics["train/entropy"]
    assert found[5.0] > found[0.0] + 0.01


def test_a_value_function_learns_the_return_of_a_state(base: BaseModel):
    """Two prompts, one always rewarded, the other never: after training, V tells them apart."""
    rng = np.random.default_rng(0)
    prompts = {"good": [5, 6, 7, 8], "bad": [20, 21, 22, 23]}

    def groups() -> list[TrainGroup]:
        return [
            TrainGroup(name, 0, encode_group([make_episode(rng, p, [30, 31], float(name == "good"))] * 4, {}))
            for name, p in prompts.items()
        ]

    spec = make_spec(
        algorithm={"kind": "ppo", "value_coefficient": 1.0, "value_clip": 10.0},
        optimiser={"learning_rate": 1e-3, "warmup_steps": 0},
    )
    trainer = PolicyTrainer(spec, base)
    first = trainer.step("b0", groups())[0]
    for number in range(1, 30):
        last = trainer.step(f"b{number}", groups())[0]
    assert first["train/explained_variance"] == pytest.approx(-1.0)  # V is 0 at first, half the returns are 1
    assert last["train/explained_variance"] > 0.9
    assert last["train/value_loss"] < 0.1 * first["train/value_loss"]
    assert "train/zero_variance_share" in last and last["train/zero_variance_share"] == 1.0


def test_a_value_function_survives_a_save(base: BaseModel, tmp_path: Path):
    spec = make_spec(algorithm={"kind": "ppo"})
    trainer = PolicyTrainer(spec, base)
    trainer.step("b0", make_groups(0))
    trainer.save(tmp_path)
    again = PolicyTrainer(spec, base)
    again.load(tmp_path)
    assert trainer.policy.parameters["value_head.weight"].abs().sum() > 0
    assert torch.equal(trainer.policy.parameters["value_head.weight"], again.policy.parameters["value_head.weight"])
    assert "value_head.weight" not in (tmp_path / "adapter" / "adapter_config.json").read_text()


class _BreakBackward(torch.autograd.Function):
    """The identity, with a gradient that is NaN where marked."""

    @staticmethod
    def forward(ctx, values, marked):
        ctx.save_for_backward(marked)
        return values.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.saved_tensors[0], float("nan"), grad), None


def test_a_nan_that_appears_in_the_gradient_only_is_traced_to_its_episode(base: BaseModel, monkeypatch):
    rng = np.random.default_rng(0)
    word = 61  # only one episode says it
    completions = [[8, 9], [10, word], [11, 12], [13]]
    episodes = [make_episode(rng, [5, 6, 7], ids, float(i % 2)) for i, ids in enumerate(completions)]
    groups = [*make_groups(0), TrainGroup("broken", 0, encode_group(episodes, {}))]
    trainer = PolicyTrainer(make_spec(), base)
    model = trainer.policy.model
    forward = type(model).forward

    def with_break(self, row, temperature=1.0):
        output = forward(self, row, temperature)
        marked = torch.from_numpy(row.target_U == word)
        return output._replace(logprob_U=_BreakBackward.apply(output.logprob_U, marked))

    monkeypatch.setattr(type(model), "forward", with_break)
    before = {name: value.detach().clone() for name, value in trainer.policy.parameters.items()}
    metrics, skipped = trainer.step("b", groups)
    assert metrics["train/skipped_updates"] == 1.0
    assert skipped == {"broken": "rejected: gradient of episode 1 is NaN or infinite"}
    assert all(torch.equal(value, before[name]) for name, value in trainer.policy.parameters.items())
    assert (trainer.version, trainer.num_updates, trainer.num_skipped_updates) == (1, 0, 1)


@pytest.mark.parametrize(
    ("algorithm", "field", "what"),
    [
        ({"kind": "ppo"}, "value_U", "value"),
        ({"advantage": "reinforce_pp", "kl_coefficient": 0.1, "kl_estimator": "k1"}, "logprob_U", "reference log-prob"),
        ({"advantage": "rloo", "kl_coefficient": 0.1, "kl_estimator": "k1"}, "logprob_U", "reference log-prob"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_one_broken_number_in_the_credit_blames_its_own_episode_alone(
    base: BaseModel, monkeypatch, algorithm, field, what, value
):
    rng = np.random.default_rng(0)
    word = 61  # only one episode says it
    episodes = [make_episode(rng, [5, 6, 7], ids, float(i % 2)) for i, ids in enumerate([[8, 9], [10, word, 11, 12]])]
    groups = [*make_groups(0), TrainGroup("broken", 0, encode_group(episodes, {}))]
    trainer = PolicyTrainer(make_spec(algorithm=algorithm), base, max_row_tokens=40)
    evaluate, forward = trainer.policy.evaluate, trainer.policy.model.forward
    asked_for = {"reference": False}

    def evaluated(rows, temperature, *, reference=False):
        asked_for["reference"] = reference
        outputs = evaluate(rows, temperature, reference=reference)
        asked_for["reference"] = False
        return outputs

    def broken(row, temperature):
        output = forward(row, temperature)
        if what == "reference log-prob" and not asked_for["reference"]:
            return output
        marked = torch.from_numpy(row.target_U == word)
        return output._replace(**{field: getattr(output, field).masked_fill(marked, value)})

    monkeypatch.setattr(trainer.policy, "evaluate", evaluated)
    monkeypatch.setattr(trainer.policy.model, "forward", broken)
    metrics, skipped = trainer.step("b", groups)
    assert metrics["train/skipped_updates"] == 1.0
    assert skipped == {"broken": f"rejected: {what} of episode 1 is NaN or infinite"}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_broken_model_is_refused_by_every_objective_naming_episodes(base: BaseModel, name: str):
    trainer = PolicyTrainer(make_spec(algorithm=ALGORITHMS[name] | {"num_updates_per_batch": 2}), base)
    trainer.policy.model.norm.data[0] = float("nan")
    before = {key: value.detach().clone() for key, value in trainer.policy.parameters.items()}
    metrics, skipped = trainer.step("b", make_groups(0))
    assert metrics["train/skipped_updates"] == 2.0
    assert skipped and all("of episode" in reason and "NaN" in reason for reason in skipped.values())
    assert all(torch.equal(value, before[key]) for key, value in trainer.policy.parameters.items())


def test_an_infinite_reward_or_a_nan_logprob_never_reaches_the_loss(base: BaseModel):
    rng = np.random.default_rng(0)
    good = [make_episode(rng, [5], [6, 7], float(i % 2)) for i in range(3)]
    data = bytearray(encode_group(good, {}))
    values = {
        "reward": (np.float64(1.0).tobytes(), np.float64(np.inf).tobytes()),
        "log-prob": (good[1].logprobs[1].tobytes(), np.float32(np.nan).tobytes()),
    }
    for name, (found, bad) in values.items():
        torn = bytes(data).replace(found, bad, 1)
        assert torn != bytes(data)
        _, skipped = PolicyTrainer(make_spec(), base).step("b", [TrainGroup("g", 0, torn)])
        assert skipped["g"].startswith("rejected: episode 1") and name in skipped["g"], skipped


def test_a_sequence_over_the_context_is_rejected_naming_the_episode(base: BaseModel):
    rng = np.random.default_rng(0)
    long = [make_episode(rng, [5] * 1020, [6] * 9, float(i % 2)) for i in range(2)]
    _, skipped = PolicyTrainer(make_spec(), base).step("b", [TrainGroup("g", 0, encode_group(long, {}))])
    assert skipped["g"] == "rejected: episode 0: 1029 tokens exceed the model's context of 1024"


def test_sharded_state_of_another_shape_or_cut_short_is_refused(base: BaseModel, tmp_path: Path):
    trainer = PolicyTrainer(make_spec(), base)
    trainer.save(tmp_path)
    name, value = next(iter(trainer.policy.parameters.items()))
    for into, words in (
        ({f"master.{name}": torch.zeros(3, 3)}, "the model needs"),
        ({"master.unknown": torch.zeros(3)}, "1 missing"),
    ):
        with pytest.raises(ShardError, match=words):
            load_sharded(tmp_path / "state", into, ALONE)
    (shard,) = (tmp_path / "state").glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ShardError, match="cannot be read"):
        load_sharded(tmp_path / "state", {f"master.{name}": torch.empty_like(value)}, ALONE)
    with pytest.raises(CheckpointError, match="damaged"):
        trainer.load(tmp_path)


def test_large_state_is_cut_into_files_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sharded, "FILE_BYTES", 100)
    tensors = {name: torch.arange(10.0) + ord(name) for name in "abcdef"}
    sharded.save_sharded(tmp_path, tensors, ALONE)
    assert 2 <= len(list(tmp_path.glob("*.safetensors"))) <= 6
    found = {name: torch.zeros(10) for name in "abcdef"}
    load_sharded(tmp_path, found, ALONE)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_rows_hold_whole_episodes():
    """GSPO and the sequence mask rely on it."""
    batch = assemble(make_groups(3), make_spec().algorithm, max_tokens=16, context_length=1024, vocab_size=1000)
    for row in pack(batch.sequences, max_row_tokens=20):
        for episode in set(row.sequence_T.tolist()):
            offsets = sorted(row.offset_T[row.sequence_T == episode].tolist())
            assert offsets == list(range(int(batch.sequences[episode].mask.sum())))
