"""Run by torchrun in test_world: steps on fixed batches, resumes from the checkpoint, prints rank 0's metrics."""

import json
import sys
from pathlib import Path

import torch

from gpu_workers.models import tiny
from gpu_workers.models.folder import read_description
from gpu_workers.trainer.backend import BaseModel, LoraTrainer
from gpu_workers.trainer.world import join_world, leave_world
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec

MAX_ROW_TOKENS = 40


def main(home: Path, output: Path) -> None:
    torch.set_num_threads(1)
    world = join_world()
    folder = home / "models" / tiny.NAME
    base = BaseModel(tiny.NAME, folder, read_description(folder).fingerprint)
    spec = make_spec(algorithm={"num_updates_per_batch": 2})

    def make() -> LoraTrainer:
        return LoraTrainer(spec, base, max_row_tokens=MAX_ROW_TOKENS, world=world)

    trainer = make()
    steps = [trainer.step("b0", make_groups(0))[0]]
    trainer.save(output / "one")
    world.broadcast("written")
    trainer = make()
    trainer.load(output / "one")
    # One row for two ranks: the second has nothing to do but keep step.
    steps.append(trainer.step("b1", make_groups(1, num_groups=1, size=2))[0])
    trainer.save(output / "two")
    if world.is_main:
        (output / "steps.json").write_text(json.dumps(steps))
    leave_world(world)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
