"""Two gloo ranks with the model sharded by FSDP2 against one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gpu_workers.trainer.packing import PackedRow
from gpu_workers.trainer.world import World
from tests.unit.gpu_workers.trainer import ranks
from tests.unit.gpu_workers.trainer.test_packing import GROUP, pack

ROOT = Path(__file__).resolve().parents[4]


def test_every_rank_makes_equally_many_passes_and_no_row_is_lost():
    rows: list[PackedRow] = pack(GROUP, max_row_tokens=5)
    assert len(rows) == 3
    shares = [World(rank, 2).share(rows) for rank in range(2)]
    assert [len(share) for share in shares] == [2, 2]
    assert sorted(i for share in shares for i in share if i is not None) == [0, 1, 2]
    assert World().share(rows) == sorted(range(3), key=lambda i: (-rows[i].num_nodes, i))


@pytest.mark.slow
def test_two_ranks_train_like_one(home: Path, tmp_path: Path):
    one, two = tmp_path / "one-rank", tmp_path / "two-ranks"
    for folder in (one, two):
        folder.mkdir()
    ranks.main(home, one)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", ranks.__file__, str(home), str(two)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    left, right = (json.loads((folder / "steps.json").read_text()) for folder in (one, two))
    for step_left, step_right in zip(left, right, strict=True):
        for name in ("loss", "grad_norm", "entropy", "clip_fraction", "kl_behaviour_k3", "num_packed_tokens"):
            assert step_right[f"train/{name}"] == pytest.approx(step_left[f"train/{name}"], rel=1e-3, abs=1e-5)
    # Adam turns rounding of tiny gradients into whole steps, so weights are compared loosely and moments tightly.
    for version in ("one", "two"):
        ours, theirs = (load_file(folder / version / "state" / "tensors.safetensors") for folder in (one, two))
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if ".exp_avg." in name:
                torch.testing.assert_close(theirs[name], value, atol=2e-4, rtol=1e-2)
