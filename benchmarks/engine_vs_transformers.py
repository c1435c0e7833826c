"""Claim: at batch 64 the embedded engine samples 2.5× as many tokens per CPU-second as Hugging Face `generate`.

The same work on every side, interleaved in one run, at batch 1, 8, 32 and 64: SmolLM2-135M-Instruct in bfloat16 where
the CPU multiplies it, else in float32 on every side, one thread, prompts of ~145 tokens in groups of up to 8 samples ×
64 new tokens, temperature 1, no truncation, ends ignored. Engines are processes of their own behind HTTP, and the
client's CPU time counts with theirs; `generate` gets the whole batch padded. With `--sglang-dir` (or
RATCHET_SGLANG_DIR) a real SGLang on this CPU is the third side: a virtual environment made by
`deploy/sglang/install.sh DIR PYTHON`.
Also compared: the log-probs that the embedded engine reported against transformers' own on the same tokens.
Prints one JSON object. Run: `python benchmarks/engine_vs_transformers.py [--repeats N] [--sglang-dir DIR]`.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from _engine_sides import GROUP_SIZE, NEW_TOKENS, HttpSide, Spent, batch_of, embedded_side, make_prompts, sglang_side
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpu_workers.engines.embedded.linear import resolve_dtype
from gpu_workers.models import smollm2

SIZES = (1, 8, 32, 64)
AIM = 2.5
MAX_MISMATCH = 0.045  # mean |difference of log-probs|; two bfloat16 implementations differ by about .037


@torch.inference_mode()
def run_transformers(model: Any, tokenizer: Any, batch: list[list[int]]) -> Spent:
    """One padded batch."""
    padded = tokenizer.pad([{"input_ids": prompt} for prompt in batch], padding_side="left", return_tensors="pt")
    before, started = time.process_time(), time.perf_counter()
    output = model.generate(
        **padded,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    assert output.shape[1] == padded["input_ids"].shape[1] + NEW_TOKENS
    return Spent(time.process_time() - before, time.perf_counter() - started)


@torch.inference_mode()
def mismatch(model: Any, spent: Spent) -> dict[str, float]:
    """|engine's − transformers'| log-probs of the first sample of every prompt."""
    differences = []
    for prompt, ids, logprobs in spent.answers[::GROUP_SIZE]:
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].float()
        own = logits.log_softmax(-1).gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
        differences.append((own - torch.tensor(logprobs)).abs())
    every = torch.cat(differences)
    return {"mean": round(float(every.mean()), 4), "max": round(float(every.max()), 3)}


@contextlib.contextmanager
def running(*sides: HttpSide) -> Iterator[None]:
    try:
        for side in sides:
            side.wait()
        yield
    finally:
        for side in sides:
            side.stop()


def line(size: int, spent: list[Spent]) -> dict[str, Any]:
    """Medians of one side at one size."""
    tokens = size * NEW_TOKENS
    return {
        "tokens_per_cpu_second": round(tokens / statistics.median(s.cpu_seconds for s in spent), 1),
        "tokens_per_second": round(tokens / statistics.median(s.wall_seconds for s in spent), 1),
        "cpu_seconds": [round(s.cpu_seconds, 2) for s in spent],
    }


def compare(lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ratios of the embedded engine to the others, pair by pair of the interleaved runs."""
    ours = lines["embedded"]["cpu_seconds"]
    ratios = {
        name: [round(b / a, 2) for a, b in zip(ours, other["cpu_seconds"], strict=True)]
        for name, other in lines.items()
        if name != "embedded"
    }
    return {"sides": lines, "embedded_over": {name: statistics.median(pairs) for name, pairs in ratios.items()}}


def main() -> int:
    """Run the sides in turn and print the comparison; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".ratchet"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--sglang-dir", type=Path, default=os.environ.get("RATCHET_SGLANG_DIR") or None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = smollm2.prepare(options.home.resolve())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dtype = str(resolve_dtype("auto", "bfloat16")).removeprefix("torch.")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    prompts = make_prompts(tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        engine = embedded_side(folder, Path(scratch) / "engine.log", "--dtype", dtype)
        sides: dict[str, Callable[[list[list[int]]], Spent]] = {"embedded": engine.run}
        servers = [engine]
        if options.sglang_dir is not None:
            servers.append(sglang_side(options.sglang_dir, folder, dtype, Path(scratch) / "sglang.log"))
            sides["sglang"] = servers[1].run
        sides["transformers"] = lambda batch: run_transformers(model, tokenizer, batch)
        load_before = os.getloadavg()[0]
        sizes: dict[int, dict[str, Any]] = {}
        with running(*servers):
            for server in servers:  # first-use costs of the kernels
                server.run([prompt[:8] for prompt in prompts], 4)
            for size in options.sizes:
                batch = batch_of(prompts, size)
                spent: dict[str, list[Spent]] = {name: [] for name in sides}
                for _ in range(options.repeats):
                    for name, run in sides.items():
                        spent[name].append(run(batch))
                sizes[size] = compare({name: line(size, each) for name, each in spent.items()})
                print(f"batch {size}: {json.dumps(sizes[size])}", file=sys.stderr, flush=True)
                difference = mismatch(model, spent["embedded"][-1])
            memory = engine.peak_memory_bytes()
    largest = sizes[max(sizes)]["embedded_over"]["transformers"]
    result = {
        "claim": f"embedded engine against transformers generate: at least {AIM} times the tokens per CPU-second at "
        f"batch {max(sizes)}",
        "new_tokens": NEW_TOKENS,
        "prompt_tokens": [len(prompt) for prompt in prompts],
        "dtype": dtype,
        "load_average_before_and_after": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "batches": sizes,
        "engine_peak_memory_mib": memory >> 20,
        "logprob_mismatch": difference,
        "holds": largest >= AIM and difference["mean"] <= MAX_MISMATCH,
    }
    print(json.dumps(result, indent=2))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
