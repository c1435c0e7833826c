"""Every algorithm really improves the tiny model: held-out success rises, over three seeds, from a start of its own.

Run by `make test-learning`. Gains are asserted, not levels; what was measured is printed with -s.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_workers.contracts.groups import encode_group
from gpu_workers.contracts.runspec import RunSpec, parse_run_spec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.models import tiny
from gpu_workers.models.folder import describe
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from tests.learning.sampling import episode, sample
from tests.learning.task import MAX_NEW_TOKENS, PairTask

pytestmark = pytest.mark.skipif(
    not os.environ.get("RATCHET_TEST_LEARNING"), reason="minutes of training: run `make test-learning`"
)
torch.set_num_threads(1)
SEEDS = [0, 1, 2]
SUPERVISED_STEPS, BATCH = 220, 64
SWAPPED_SHARE = 0.7
PROMPTS, GROUP_SIZE = 16, 8
LORA = {"rank": 8, "alpha": 16.0}
FULL = {"update": "full"}
# kind -> what the run says beyond the defaults, and its number of steps
RUNS: dict[str, tuple[dict[str, object], int]] = {
    "grpo": ({"lora": LORA, "optimiser": {"learning_rate": 3e-3}}, 30),
    "grpo-full": ({"trainer": FULL, "optimiser": {"learning_rate": 1e-3}}, 30),
    "reinforce++": (
        {
            "lora": LORA,
            "optimiser": {"learning_rate": 3e-3},
            "algorithm": {"advantage": "reinforce_pp", "correction": "icepop"},
        },
        30,
    ),
    "gspo": (
        {
            "lora": LORA,
            "optimiser": {"learning_rate": 2e-3},
            "algorithm": {"kind": "gspo", "num_updates_per_batch": 3, "clip_low": 0.03, "clip_high": 0.04},
        },
        30,
    ),
    "ppo": (
        {
            "lora": LORA,
            "optimiser": {"learning_rate": 2e-3},
            "algorithm": {"kind": "ppo", "num_updates_per_batch": 3, "gae_lambda": 0.95, "value_coefficient": 0.1},
        },
        30,
    ),
}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("learning")


def spec_of(seed: int, **changes: object) -> RunSpec:
    data = {"suite": "pairs", "policy": "tiny", "seed": seed, "rollout": {"max_new_tokens": MAX_NEW_TOKENS}}
    return parse_run_spec(data | changes)


def base_of(folder: Path) -> BaseModel:
    return BaseModel(folder.name, folder, describe(folder, folder.name).fingerprint)


def success(trainer: PolicyTrainer, task: PairTask, *, seed: int = 7, samples: int = 4) -> float:
    """Share of sampled answers to held-out prompts that are right."""
    pairs = [pair for pair in task.heldout for _ in range(samples)]
    generator = torch.Generator().manual_seed(seed)
    made = sample(trainer.policy.model, [task.prompt(p) for p in pairs], max_new=MAX_NEW_TOKENS, generator=generator)
    return float(np.mean([task.reward(pair, ids) == 1.0 for pair, (ids, _) in zip(pairs, made, strict=True)]))


def train_supervised(trainer: PolicyTrainer, task: PairTask, seed: int, *, swapped: float) -> list[float]:
    rng = np.random.default_rng(seed)
    losses = []
    for step in range(SUPERVISED_STEPS):
        pairs = [task.train[i] for i in rng.integers(len(task.train), size=BATCH)]
        batch = [task.example(pair, swapped=bool(rng.random() < swapped)) for pair in pairs]
        losses.append(trainer.step_supervised(f"s{step}", batch)["train/loss"])
    return losses


@pytest.fixture(scope="session", params=SEEDS)
def started(request: pytest.FixtureRequest, home: Path) -> tuple[int, PairTask, Path]:
    """A policy that knows the letters but mostly swaps them, exported as a model folder."""
    seed = int(request.param)
    raw = tiny.prepare(home, seed=seed, name=f"raw-{seed}")
    task = PairTask(raw, seed)
    spec = spec_of(
        seed, steps=SUPERVISED_STEPS, algorithm={"kind": "sft"}, trainer=FULL,
        optimiser={"learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 10},
    )  # fmt: skip
    trainer = PolicyTrainer(spec, base_of(raw))
    train_supervised(trainer, task, seed, swapped=SWAPPED_SHARE)
    folder = home / f"start-{seed}"
    trainer.policy.export(folder, "tiny")
    return seed, task, folder / "model"


def collect(trainer: PolicyTrainer, task: PairTask, rng: np.random.Generator, generator: torch.Generator):
    """One batch of groups, sampled from the present policy; what a rollout worker would report."""
    pairs = [task.train[i] for i in rng.choice(len(task.train), PROMPTS, replace=False)]
    prompts = [task.prompt(pair) for pair in pairs for _ in range(GROUP_SIZE)]
    made = sample(trainer.policy.model, prompts, max_new=MAX_NEW_TOKENS, generator=generator)
    groups = []
    for number, pair in enumerate(pairs):
        members = made[number * GROUP_SIZE : (number + 1) * GROUP_SIZE]
        episodes = [
            episode(task.prompt(pair), ids, logprobs, task.reward(pair, ids), trainer.version)
            for ids, logprobs in members
        ]
        groups.append(TrainGroup(f"{trainer.version}-{number}", 0, encode_group(episodes, {})))
    return groups


@pytest.mark.parametrize("update", ["lora", "full"])
def test_supervision_improves_heldout_success(started: tuple[int, PairTask, Path], update: str):
    seed, task, folder = started
    spec = spec_of(
        seed, steps=SUPERVISED_STEPS, algorithm={"kind": "sft"}, lora=LORA, trainer={"update": update},
        optimiser={"learning_rate": 3e-3 if update == "lora" else 1e-3, "schedule": "linear"},
    )  # fmt: skip
    trainer = PolicyTrainer(spec, base_of(folder))
    before = success(trainer, task)
    losses = train_supervised(trainer, task, seed, swapped=0.0)
    after = success(trainer, task)
    print(f"sft {update} seed {seed}: held-out {before:.2f} -> {after:.2f}")
    assert trainer.num_skipped_updates == 0
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    assert after > before + 0.2


@pytest.mark.parametrize("name", list(RUNS))
def test_reinforcement_improves_heldout_success(started: tuple[int, PairTask, Path], name: str):
    seed, task, folder = started
    changes, steps = RUNS[name]
    trainer = PolicyTrainer(spec_of(seed, steps=steps, **changes), base_of(folder))
    before = success(trainer, task)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    curve, clipped = [], []
    for step in range(steps):
        metrics, _ = trainer.step(f"b{step}", collect(trainer, task, rng, generator))
        curve.append(metrics["train/reward_mean"])
        clipped.append(metrics.get("train/clip_fraction", 0.0))
    after = success(trainer, task)
    print(f"{name} seed {seed}: held-out {before:.2f} -> {after:.2f}, clip fraction {np.mean(clipped):.3f}")
    assert trainer.num_skipped_updates == 0
    assert after > before + 0.2
    assert np.mean(curve[-5:]) > np.mean(curve[:5]) + 0.1
    if trainer.spec.algorithm.num_updates_per_batch > 1:
        assert trainer.num_updates == trainer.spec.algorithm.num_updates_per_batch * steps
        assert np.mean(clipped) > 0.0
