"""The LoRA backend: what it learns, what it skips, what does not change the result, and that resuming is exact."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_workers.contracts.groups import encode_group
from gpu_workers.contracts.runspec import RunSpec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.checkpoints import CheckpointError
from gpu_workers.trainer.packing import TokenSequence, pack
from tests.unit.gpu_workers.trainer.synthetic import make_episode, make_groups, make_spec

PROMPT, GOOD, BAD = [5, 6, 7, 8, 9, 10], [11, 12, 13], [11, 14, 15]


def weights(trainer: PolicyTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters.values()])


def logprob(trainer: PolicyTrainer, completion: list[int]) -> float:
    tokens = np.array(PROMPT + completion, dtype=np.int32)
    mask = np.array([0] * len(PROMPT) + [1] * len(completion), dtype=np.uint8)
    (row,) = pack([TokenSequence(tokens, mask)], max_row_tokens=100)
    with torch.no_grad():
        return float(trainer.policy.model(row)[0].sum())


def on_policy_group(trainer: PolicyTrainer, rewards: dict[str, float]) -> TrainGroup:
    """Two samples each of GOOD and BAD with the trainer's own log-probs as behaviour."""
    rng = np.random.default_rng(0)
    episodes = []
    for completion, name in ((GOOD, "good"), (BAD, "bad")) * 2:
        episode = make_episode(rng, PROMPT, completion, rewards[name])
        (row,) = pack([TokenSequence(episode.tokens, episode.mask)], max_row_tokens=100)
        with torch.no_grad():
            episode.logprobs[episode.mask == 1] = trainer.policy.model(row)[0].numpy()
        episodes.append(episode)
    return TrainGroup("g", 0, encode_group(episodes, {}))


def test_rewarded_samples_become_likelier_than_their_siblings(base: BaseModel):
    trainer = PolicyTrainer(make_spec(), base)
    before = logprob(trainer, GOOD) - logprob(trainer, BAD)
    losses = []
    for number in range(12):
        metrics, skipped = trainer.step(f"b{number}", [on_policy_group(trainer, {"good": 1.0, "bad": 0.0})])
        losses.append(metrics["train/loss"])
        assert skipped == {}
        assert metrics["train/logprob_mismatch_max"] < 1e-4
    assert logprob(trainer, GOOD) - logprob(trainer, BAD) > before + 1.0
    assert trainer.version == 12


def test_a_golden_curve(base: BaseModel):
    """Six steps on fixed groups; a refactor must reproduce it."""
    trainer = PolicyTrainer(make_spec(), base)
    norms = [trainer.step(f"b{k}", make_groups(k))[0]["train/grad_norm"] for k in range(6)]
    np.testing.assert_allclose(norms, GOLDEN_NORMS, rtol=2e-3)


GOLDEN_NORMS = [0.50896, 0.40696, 0.60564, 0.5513, 0.64234, 0.76894]


def test_groups_that_teach_nothing_are_skipped_with_their_reason(base: BaseModel):
    rng = np.random.default_rng(0)
    flat = TrainGroup("flat", 1, encode_group([make_episode(rng, [5], [6], 1.0) for _ in range(3)], {}))
    lonely = TrainGroup(
        "lonely", 2, encode_group([make_episode(rng, [5], [6], 1.0), make_episode(rng, [5], [7], None)], {})
    )
    torn = TrainGroup("torn", 0, b"\x00" * 40)
    good = make_groups(1, num_groups=1)[0]
    trainer, alone = PolicyTrainer(make_spec(), base), PolicyTrainer(make_spec(), base)
    metrics, skipped = trainer.step("b", [flat, lonely, torn, good])
    alone.step("b", [good])
    assert skipped["flat"] == "zero_variance"
    assert skipped["lonely"] == "too_few_scored"
    assert skipped["torn"].startswith("rejected: ")
    assert metrics["train/zero_variance_share"] == 0.25
    assert metrics["train/staleness_max"] == 2.0
    assert torch.equal(weights(trainer), weights(alone))


def test_a_batch_without_any_use_still_finishes(base: BaseModel):
    trainer = PolicyTrainer(make_spec(), base)
    before = weights(trainer)
    metrics, _ = trainer.step("b", [TrainGroup("torn", 0, b"")])
    assert (trainer.version, trainer.batch_ids) == (1, ["b"])
    assert metrics["train/skipped_updates"] == 1.0
    assert torch.equal(weights(trainer), before)


def test_a_broken_model_skips_the_update_and_names_the_episode(base: BaseModel):
    trainer = PolicyTrainer(make_spec(), base)
    with torch.no_grad():
        trainer.policy.model.norm[0] = float("nan")
    before = weights(trainer)
    metrics, skipped = trainer.step("b", make_groups(0))
    assert metrics["train/skipped_updates"] == 1.0
    assert trainer.num_skipped_updates == 1
    assert torch.equal(weights(trainer), before)
    assert any("episode" in reason and "NaN" in reason for reason in skipped.values())


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("limit", [40, 70])
def test_the_cut_into_rows_does_not_change_the_step(base: BaseModel, aggregation: str, limit: int):
    spec = make_spec(algorithm={"aggregation": aggregation})
    groups = make_groups(4, turns=2)
    whole, cut = PolicyTrainer(spec, base), PolicyTrainer(spec, base, max_row_tokens=limit)
    one, _ = whole.step("b", groups)
    two, _ = cut.step("b", groups)
    assert one["train/num_packed_tokens"] < two["train/num_packed_tokens"]
    for name in ("loss", "grad_norm", "entropy", "kl_behaviour_k3", "effective_sample_size"):
        assert two[f"train/{name}"] == pytest.approx(one[f"train/{name}"], rel=1e-3, abs=1e-6)


def test_several_updates_clip_around_the_policy_before_the_step(base: BaseModel):
    spec = make_spec(
        algorithm={"num_updates_per_batch": 3, "clip_low": 0.01, "clip_high": 0.01},
        optimiser={"learning_rate": 5e-2, "warmup_steps": 0},
    )
    trainer = PolicyTrainer(spec, base)
    metrics, _ = trainer.step("b", make_groups(2))
    assert trainer.num_updates == 3
    assert metrics["train/clip_fraction"] > 0.1
    once, _ = PolicyTrainer(make_spec(), base).step("b", make_groups(2))
    assert once["train/clip_fraction"] == 0.0


def resumed(spec: RunSpec, base: BaseModel, folder: Path) -> PolicyTrainer:
    trainer = PolicyTrainer(spec, base, attempt=2)
    trainer.load(folder)
    return trainer


def test_resuming_is_bit_exact(base: BaseModel, tmp_path: Path):
    spec = make_spec(optimiser={"learning_rate": 1e-2, "warmup_steps": 3, "decay": True})
    straight = PolicyTrainer(spec, base)
    for number in range(4):
        straight.step(f"b{number}", make_groups(number))
        if number == 1:
            straight.save(tmp_path)
    torch.rand(5)  # the resumed process has another past
    again = resumed(spec, base, tmp_path)
    assert (again.version, again.batch_ids) == (2, ["b0", "b1"])
    assert again.group_ids == [[group.group_id for group in make_groups(number)] for number in (0, 1)]
    for number in (2, 3):
        again.step(f"b{number}", make_groups(number))
    assert torch.equal(weights(straight), weights(again))
    for name, value in straight.policy.optimiser.moments().items():
        assert torch.equal(value, again.policy.optimiser.moments()[name]), name


def test_random_states_are_restored(spec: RunSpec, base: BaseModel, tmp_path: Path):
    trainer = PolicyTrainer(spec, base)
    trainer.save(tmp_path)
    expected = torch.rand(3)
    again = resumed(spec, base, tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert again.version == 0


def test_a_foreign_checkpoint_is_refused_and_nothing_changes(spec: RunSpec, base: BaseModel, tmp_path: Path):
    PolicyTrainer(spec, base).save(tmp_path)
    other = PolicyTrainer(make_spec(seed=5), base)
    before = weights(other)
    with pytest.raises(CheckpointError, match="another RunSpec"):
        other.load(tmp_path)
    moved = PolicyTrainer(spec, BaseModel(base.name, base.folder, "f" * 64))
    with pytest.raises(CheckpointError, match="another base model"):
        moved.load(tmp_path)
    assert torch.equal(weights(other), before)
