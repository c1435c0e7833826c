"""Claim: deterministic mode costs at most 4 times the CPU time of the embedded engine in float32.

The same work with and without `--deterministic`, interleaved in one run, at batch 1, 8 and 32: SmolLM2-135M-Instruct in
float32, one thread, prompts of ~145 tokens in groups of up to 8 samples × 64 new tokens. What it buys is checked along
the way: the tokens and log-probs of the first batch are those of the others, bit by bit.
Prints one JSON object. Run: `python benchmarks/deterministic_cost.py [--home HOME] [--repeats N]`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _engine_sides import NEW_TOKENS, Spent, batch_of, embedded_side, make_prompts
from transformers import AutoTokenizer

from gpu_workers.models import smollm2

SIZES = (1, 8, 32)
AIM = 4.0


def main() -> int:
    """Print the comparison; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".ratchet"))
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    folder = smollm2.prepare(options.home.resolve())
    prompts = make_prompts(AutoTokenizer.from_pretrained(folder))
    sizes: dict[int, dict[str, Any]] = {}
    firsts = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        sides = {
            "float32": embedded_side(folder, Path(scratch) / "free.log", "--dtype", "float32"),
            "deterministic": embedded_side(folder, Path(scratch) / "fixed.log", "--deterministic"),
        }
        try:
            for side in sides.values():
                side.wait()
                side.run([prompts[0][:8]], 4)
            for size in SIZES:
                spent: dict[str, list[Spent]] = {name: [] for name in sides}
                for _ in range(options.repeats):
                    for name, side in sides.items():
                        side.num_calls = 0  # the same seeds
                        spent[name].append(side.run(batch_of(prompts, size)))
                firsts += [each.answers[0] for each in spent["deterministic"]]
                seconds = {name: statistics.median(s.cpu_seconds for s in each) for name, each in spent.items()}
                sizes[size] = {
                    "tokens_per_cpu_second": {n: round(size * NEW_TOKENS / s, 1) for n, s in seconds.items()},
                    "cost": round(seconds["deterministic"] / seconds["float32"], 2),
                }
        finally:
            for side in sides.values():
                side.stop()
    same = all(answer == firsts[0] for answer in firsts)
    result = {
        "claim": f"deterministic mode costs at most {AIM:g} times the CPU time",
        "load_average_before_and_after": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "batches": sizes,
        "first_answer_is_the_same_in_every_batch": same,
        "holds": same and max(line["cost"] for line in sizes.values()) <= AIM,
    }
    print(json.dumps(result, indent=2))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
