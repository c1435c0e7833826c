"""Run by torchrun in test_world: steps on fixed batches, resumes from the checkpoint, prints rank 0's metrics.

`python ranks.py HOME OUTPUT CASE [CHECKPOINT]`: with a checkpoint, only the step after it is taken.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from gpu_workers.contracts.runspec import RunSpec
from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.packing import TokenSequence
from gpu_workers.trainer.world import end_rank, join_world, leave_world
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec

MAX_ROW_TOKENS = 40
FULL = {"update": "full"}
CASES: dict[str, dict[str, object]] = {
    "lora": {"algorithm": {"num_updates_per_batch": 2}},
    "full": {"trainer": FULL, "algorithm": {"num_updates_per_batch": 2, "kl_coefficient": 0.1}},
    "gspo": {"algorithm": {"kind": "gspo", "num_updates_per_batch": 2, "clip_low": 0.01, "clip_high": 0.01}},
    "ppo": {
        "trainer": FULL | {"activation_checkpointing": True},
        "algorithm": {"kind": "ppo", "num_updates_per_batch": 2, "entropy_coefficient": 0.01},
    },
    "sft": {"trainer": FULL, "algorithm": {"kind": "sft"}},
    "bfloat16-lora": {"trainer": {"compute_dtype": "bfloat16"}},
    "bfloat16-full": {"trainer": FULL | {"compute_dtype": "bfloat16"}},
}


def spec_of(case: str) -> RunSpec:
    return make_spec(**CASES[case], optimiser={"learning_rate": 1e-3, "warmup_steps": 0})


def main(home: Path, output: Path, case: str, checkpoint: Path | None = None) -> None:
    torch.set_num_threads(1)
    world = join_world()
    folder = home / "models" / tiny.NAME
    base = BaseModel(tiny.NAME, folder, read_description(folder).fingerprint)

    def make() -> PolicyTrainer:
        return PolicyTrainer(spec_of(case), base, max_row_tokens=MAX_ROW_TOKENS, world=world)

    steps = []
    if checkpoint is None:
        trainer = make()
        # Three prompts over two ranks: rows of unequal numbers of tokens.
        steps.append(take_step(trainer, case, 0))
        mine = output / f"rank-{world.rank}"  # a folder of its own, as on hosts that share none
        trainer.save(mine)
        world.broadcast("written")
        if world.is_main:
            for other in range(world.size):
                (output / f"rank-{other}").rename(output / "one") if other == 0 else merge(output, other)
        world.broadcast("merged")
        checkpoint = output / "one"
    trainer = make()
    trainer.load(checkpoint)
    # One row for two ranks: the second has nothing to do but keep step.
    steps.append(take_step(trainer, case, 1))
    trainer.save(output / "two")
    if world.is_main:
        (output / "steps.json").write_text(json.dumps(steps))
    leave_world(world)
    end_rank(world, 0)


def take_step(trainer: PolicyTrainer, case: str, number: int) -> dict[str, float]:
    if case == "sft":
        return trainer.step_supervised(f"b{number}", examples(number))
    return trainer.step(f"b{number}", make_groups(number) if number == 0 else make_groups(1, num_groups=1, size=2))[0]


def examples(number: int) -> list[TokenSequence]:
    """At first four of unequal length; then two, of which the longer has no token in the loss: one rank all masked."""
    lengths = (5, 18, 33, 38) if number == 0 else (20, 38)
    made = []
    for length in lengths:
        tokens = (np.arange(length, dtype=np.int32) + length) % 50 + 4 + number  # no common prefix
        mask = np.array([0, 0] + [1] * (length - 2), dtype=np.uint8)
        made.append(TokenSequence(tokens, mask * (number == 0 or length < 38)))
    return made


def merge(output: Path, rank: int) -> None:
    """What a store does with the folders of several ranks under one key."""
    for file in (output / f"rank-{rank}").rglob("*"):
        if file.is_file():
            file.rename(output / "one" / file.relative_to(output / f"rank-{rank}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], *map(Path, sys.argv[4:]))
