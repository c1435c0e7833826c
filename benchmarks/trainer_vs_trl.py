"""Claim: a GRPO step trains at least 4× as many completions per second as TRL's, a whole step with generation is at
least 5× as fast, and both need half the memory.

Both sides in one run, on the same threads: SmolLM2-135M-Instruct, LoRA r=16 on all linear layers, bfloat16 where the
processor has it, 8 prompts of ~145 tokens × 8 completions × 64 tokens. The training part learns from the same
completions on both sides (sampled once by our engine); the whole step samples its own, on TRL's side by transformers'
`generate`, its backend without a GPU. TRL is measured with gradient checkpointing on (its default) and off and at
several micro-batches; its best speed is quoted against our speed, its lowest memory against our memory.
TRL lives in a virtual environment of its own: `--trl-python`, by default made under HOME (pinned below).
Prints one JSON object. Run on a quiet machine: `python benchmarks/trainer_vs_trl.py [--home HOME] [--threads N]`.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PINS = ("trl==1.16.0", "transformers==5.24.0", "peft==0.21.2")  # what was the newest when this was written
SETTINGS = [(True, 8), (False, 8), (False, 16), (False, 64)]  # gradient checkpointing, micro-batch
TRAINING_AIM, STEP_AIM, MEMORY_AIM = 4.0, 5.0, 0.5


def trl_python(home: Path) -> Path:
    """The interpreter of TRL's virtual environment, made at first use with our own torch version."""
    folder = home / "trl"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        import torch

        print("Installing TRL into a virtual environment of its own …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pins = [f"torch=={torch.__version__.split('+')[0]}", *PINS]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
        (folder / "ready").touch()
    return python


def sample(folder: Path, threads: int, repeats: int) -> dict[str, Any]:
    """Our engine in its own process: seconds to sample all completions, the completions, its peak memory."""
    from engine_vs_transformers import GROUP_SIZE, EngineSide, endless_copy, make_prompts
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = make_prompts(tokenizer)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as scratch:
        engine = EngineSide(endless_copy(folder, Path(scratch) / "model"), Path(scratch) / "engine.log")
        try:
            asyncio.run(engine.run([prompt[:8] for prompt in prompts]))  # first-use costs of the kernels
            walls: list[float] = []
            answers: list[Any] = []
            for _ in range(repeats):
                started = time.perf_counter()
                _, answers = asyncio.run(engine.run(prompts))
                walls.append(time.perf_counter() - started)
            memory = engine.peak_memory_bytes()
        finally:
            engine.stop()
    groups = [answers[start : start + GROUP_SIZE] for start in range(0, len(answers), GROUP_SIZE)]
    return {
        "seconds": statistics.median(walls),
        "peak_memory_bytes": memory,
        "prompts": prompts,
        "texts": tokenizer.batch_decode(prompts),
        "completions": [[result.output_ids for _, result in group] for group in groups],
        "logprobs": [[result.logprobs for _, result in group] for group in groups],
    }


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Our trainer, in the process that `--side` starts: decode, pack, forward, backward, clip, AdamW."""
    import numpy as np
    import torch

    from gpu_workers.contracts.groups import EpisodeTokens, encode_group
    from gpu_workers.contracts.runspec import parse_run_spec
    from gpu_workers.contracts.seams import TrainGroup
    from gpu_workers.models import smollm2
    from gpu_workers.models.folder import read_description
    from gpu_workers.process import keep_freed_memory
    from gpu_workers.trainer.backend import BaseModel, LoraTrainer

    keep_freed_memory()
    torch.set_flush_denormal(True)
    torch.set_num_threads(job["threads"])
    folder = Path(job["model"])
    spec = parse_run_spec({"suite": "bench", "policy": smollm2.NAME})
    trainer = LoraTrainer(spec, BaseModel(smollm2.NAME, folder, read_description(folder).fingerprint))
    groups = []
    for index, prompt in enumerate(job["prompts"]):
        members = []
        for number, (ids, logprobs) in enumerate(zip(job["completions"][index], job["logprobs"][index], strict=True)):
            blank = len(prompt)
            members.append(
                EpisodeTokens(
                    np.array([*prompt, *ids], dtype=np.int32),
                    np.array([0] * blank + [1] * len(ids), dtype=np.uint8),
                    np.array([0.0] * blank + list(logprobs), dtype=np.float32),
                    np.array([-1] * blank + [0] * len(ids), dtype=np.int32),
                    float(number % 2),
                )
            )
        groups.append(TrainGroup(f"g{index}", 0, encode_group(members, {})))
    walls, cpus = [], []
    for step in range(1 + job["repeats"]):
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.step(f"batch-{step}", groups)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"training_seconds": walls[1:], "training_cpu_seconds": cpus[1:], "peak_memory_bytes": peak}


def run_side(python: Path, script: list[str], job: dict[str, Any]) -> dict[str, Any]:
    """One side's process; raises SystemExit with the end of its output when it fails."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "TRL_EXPERIMENTAL_SILENCE": "1"}
        done = subprocess.run(
            [python, *script, file.name], capture_output=True, text=True, env=environment, check=False
        )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    raise SystemExit(f"{script} failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def main() -> int:
    """Run every side and print the comparison; exit code 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=ROOT / ".ratchet")
    parser.add_argument("--trl-python", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print("RESULT " + json.dumps(train(json.loads(Path(options.side).read_text()))))
        return 0

    from gpu_workers.models import smollm2
    from gpu_workers.trainer.model import compute_dtype

    home = options.home.resolve()
    folder = smollm2.prepare(home)
    python = options.trl_python or trl_python(home)
    sampled = sample(folder, options.threads, options.repeats)
    job = {
        "model": str(folder),
        "threads": options.threads,
        "repeats": options.repeats,
        "group_size": len(sampled["completions"][0]),
        "new_tokens": len(sampled["completions"][0][0]),
        "bf16": "bfloat16" in str(compute_dtype(folder)),
        **{key: sampled[key] for key in ("prompts", "texts", "completions", "logprobs")},
    }
    ours = run_side(Path(sys.executable), [__file__, "--side"], job)
    settings: dict[str, dict[str, Any]] = {}
    for checkpointing, size in SETTINGS:
        setting = {"gradient_checkpointing": checkpointing, "micro_batch": size, "generate": False}
        name = f"micro-batch {size}, gradient checkpointing {'on' if checkpointing else 'off'}"
        settings[name] = run_side(python, [str(ROOT / "benchmarks/_trl_side.py")], {**job, **setting})
        settings[name]["setting"] = setting
    best = min(settings.values(), key=lambda row: statistics.median(row["training_seconds"]))
    generating = {**job, **best["setting"], "generate": True}
    whole = run_side(python, [str(ROOT / "benchmarks/_trl_side.py")], generating)

    num_completions = len(job["prompts"]) * job["group_size"]
    our_training = statistics.median(ours["training_seconds"])
    our_step = our_training + sampled["seconds"]
    their_training = statistics.median(best["training_seconds"])
    their_step = statistics.median(whole["step_seconds"])
    memory = ours["peak_memory_bytes"] + sampled["peak_memory_bytes"]
    # The memory is quoted against TRL's leanest setting, with generation, which is in the same process there.
    their_memory = min(row["peak_memory_bytes"] for row in [whole, *settings.values()])
    training_ratio, step_ratio = their_training / our_training, their_step / our_step
    cpu_ratio = statistics.median(best["training_cpu_seconds"]) / statistics.median(ours["training_cpu_seconds"])
    result = {
        "claim": f"training {TRAINING_AIM}×, whole step {STEP_AIM}× as fast as TRL, {MEMORY_AIM} of its memory",
        "threads": options.threads,
        "completions": num_completions,
        "bf16": job["bf16"],
        "ours": {
            "training_completions_per_second": round(num_completions / our_training, 2),
            "generation_seconds": round(sampled["seconds"], 2),
            "step_seconds": round(our_step, 2),
            "trainer_peak_mib": ours["peak_memory_bytes"] >> 20,
            "engine_peak_mib": sampled["peak_memory_bytes"] >> 20,
        },
        "trl_training": {
            name: {
                "completions_per_second": round(num_completions / statistics.median(row["training_seconds"]), 2),
                "peak_mib": row["peak_memory_bytes"] >> 20,
            }
            for name, row in settings.items()
        },
        "trl_whole_step": {
            "generation_seconds": round(statistics.median(whole["generation_seconds"]), 2),
            "step_seconds": round(their_step, 2),
            "peak_mib": whole["peak_memory_bytes"] >> 20,
        },
        "training_ratio": round(training_ratio, 2),
        "training_ratio_of_cpu_seconds": round(cpu_ratio, 2),
        "step_ratio": round(step_ratio, 2),
        "trainer_memory_ratio": round(ours["peak_memory_bytes"] / their_memory, 2),
        "trainer_and_engine_memory_ratio": round(memory / their_memory, 2),
    }
    print(json.dumps(result, indent=2))
    return 0 if training_ratio >= TRAINING_AIM and step_ratio >= STEP_AIM and memory <= MEMORY_AIM * their_memory else 1


if __name__ == "__main__":
    sys.exit(main())
