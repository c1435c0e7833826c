"""Claim: a GRPO step trains at least 4× as many completions per second as TRL's, a whole step with generation is at
least 5× as fast, and both need half the memory.

Both sides in one run, on the same threads: SmolLM2-135M-Instruct, LoRA r=16 on all linear layers, bfloat16 where the
processor has it, 8 prompts of ~145 tokens × 8 completions × 64 tokens. The training part learns from the same
completions on both sides (sampled once by our engine); the whole step samples its own, on TRL's side by transformers'
`generate`, its backend without a GPU. TRL is measured with gradient checkpointing on (its default) and off and at
several micro-batches, ours without activation checkpointing and once with it; best speed is quoted against best speed,
lowest memory against lowest memory.
Each measurement is a process of its own, one after another, the two sides in turns; `--prefix` is put before each (for
`taskset`, or a lock that other work respects). TRL's settings are compared once, its best one then `--repeats` times.
TRL lives in a virtual environment of its own: `--trl-python`, by default made under HOME (pinned below).
Prints one JSON object. Run on a quiet machine: `python benchmarks/trainer_vs_trl.py [--home HOME] [--threads N]`.
"""

import argparse
import json
import os
import shlex
import signal
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


def sample(job: dict[str, Any]) -> dict[str, Any]:
    """Our engine in its own process: seconds to sample all completions, the completions, its peak memory."""
    from _engine_sides import GROUP_SIZE, batch_of, embedded_side, make_prompts
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    prompts = make_prompts(tokenizer)
    batch = batch_of(prompts, GROUP_SIZE * len(prompts))
    with tempfile.TemporaryDirectory() as scratch:
        engine = embedded_side(Path(job["model"]), Path(scratch) / "engine.log")
        try:
            engine.wait()
            engine.run([prompt[:8] for prompt in batch])  # first-use costs of the kernels
            spent = [engine.run(batch) for _ in range(2)]
            memory = engine.peak_memory_bytes()
        finally:
            engine.stop()
    answers = spent[-1].answers
    groups = [answers[start : start + GROUP_SIZE] for start in range(0, len(answers), GROUP_SIZE)]
    return {
        "generation_seconds": [one.wall_seconds for one in spent],
        "generation_cpu_seconds": [one.cpu_seconds for one in spent],
        "peak_memory_bytes": memory,
        "prompts": prompts,
        "texts": tokenizer.batch_decode(prompts),
        "completions": [[ids for _, ids, _ in group] for group in groups],
        "logprobs": [[logprobs for _, _, logprobs in group] for group in groups],
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
    from gpu_workers.trainer.backend import BaseModel, PolicyTrainer

    keep_freed_memory()
    torch.set_flush_denormal(True)
    torch.set_num_threads(job["threads"])
    folder = Path(job["model"])
    parts = {"activation_checkpointing": job["checkpointing"]}
    spec = parse_run_spec({"suite": "bench", "policy": smollm2.NAME, "trainer": parts})
    trainer = PolicyTrainer(spec, BaseModel(smollm2.NAME, folder, read_description(folder).fingerprint))
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
    for step in range(1 + job["steps"]):
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.step(f"batch-{step}", groups)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"training_seconds": walls[1:], "training_cpu_seconds": cpus[1:], "peak_memory_bytes": peak}


def run_side(command: list[str], job: dict[str, Any]) -> dict[str, Any]:
    """One side's process. Raises MemoryError where it was killed, else SystemExit with the end of its output."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), "TRL_EXPERIMENTAL_SILENCE": "1"}
        done = subprocess.run([*command, file.name], capture_output=True, text=True, env=environment, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            result = dict(json.loads(line.removeprefix("RESULT ")))
            seconds = {name: value for name, value in result.items() if name.endswith("_seconds")}
            print(json.dumps({"load": round(os.getloadavg()[0], 1), **seconds}), file=sys.stderr, flush=True)
            return result
    if done.returncode == -signal.SIGKILL:
        raise MemoryError(f"{command} was killed: this machine has too little memory for it")
    raise SystemExit(f"{command} failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def main() -> int:
    """Run every side and print the comparison; exit code 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=ROOT / ".ratchet")
    parser.add_argument("--trl-python", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    sizes = sorted({size for _, size in SETTINGS})
    parser.add_argument("--micro-batches", type=int, nargs="+", choices=sizes, default=sizes, help="of TRL's settings")
    parser.add_argument("--prefix", default="", help="command before each measured process")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side = {"train": train, "sample": sample}[options.side[0]]
        print("RESULT " + json.dumps(side(json.loads(Path(options.side[1]).read_text()))))
        return 0

    from gpu_workers.models import smollm2
    from gpu_workers.trainer.model import compute_dtype

    home = options.home.resolve()
    folder = smollm2.prepare(home)
    prefix = shlex.split(options.prefix)
    ours = [*prefix, sys.executable, __file__, "--side"]
    theirs = [*prefix, str(options.trl_python or trl_python(home)), str(ROOT / "benchmarks/_trl_side.py")]
    job: dict[str, Any] = {"model": str(folder), "threads": options.threads, "steps": 1}
    sampled = [run_side([*ours, "sample"], job)]
    first = sampled[0]
    job |= {
        "group_size": len(first["completions"][0]),
        "new_tokens": len(first["completions"][0][0]),
        "bf16": "bfloat16" in str(compute_dtype(folder)),
        **{key: first[key] for key in ("prompts", "texts", "completions", "logprobs")},
    }
    settings: dict[str, list[dict[str, Any]]] = {}
    jobs: dict[str, dict[str, Any]] = {}
    for checkpointing, size in SETTINGS:
        if size not in options.micro_batches:
            continue
        name = f"micro-batch {size}, gradient checkpointing {'on' if checkpointing else 'off'}"
        jobs[name] = job | {"gradient_checkpointing": checkpointing, "micro_batch": size, "generate": False}
        try:
            settings[name] = [run_side(theirs, jobs[name])]
        except MemoryError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    best = min(settings, key=lambda name: middle(settings[name], "training_seconds"))
    trained, whole = [], []
    lean = [run_side([*ours, "train"], job | {"checkpointing": True})]
    for number in range(options.repeats):
        trained.append(run_side([*ours, "train"], job | {"checkpointing": False}))
        if number:
            sampled.append(run_side([*ours, "sample"], job))
            settings[best].append(run_side(theirs, jobs[best]))
        whole.append(run_side(theirs, jobs[best] | {"generate": True}))
    result = compare(job, trained, lean, sampled, settings, best, whole)
    print(json.dumps(result, indent=2))
    return 0 if result["holds"] else 1


def middle(rows: list[dict[str, Any]], name: str) -> float:
    """Median over every measured step of every process."""
    return statistics.median(value for row in rows for value in row[name])


def peak(rows: list[dict[str, Any]]) -> int:
    return max(int(row["peak_memory_bytes"]) for row in rows)


def compare(
    job: dict[str, Any],
    trained: list[dict[str, Any]],
    lean: list[dict[str, Any]],
    sampled: list[dict[str, Any]],
    settings: dict[str, list[dict[str, Any]]],
    best: str,
    whole: list[dict[str, Any]],
) -> dict[str, Any]:
    """Rates, ratios and memory, with each side's fastest setting for speed and its leanest for memory."""
    count = len(job["prompts"]) * job["group_size"]
    our_training, our_generation = middle(trained, "training_seconds"), middle(sampled, "generation_seconds")
    their_training, their_step = middle(settings[best], "training_seconds"), middle(whole, "step_seconds")
    leanest = min(peak(trained), peak(lean))
    memory = leanest + peak(sampled)
    # With generation, which is in the same process there.
    their_memory = min(peak(rows) for rows in [whole, *settings.values()])
    training_ratio, step_ratio = their_training / our_training, their_step / (our_training + our_generation)
    our_cpu = middle(trained, "training_cpu_seconds") + middle(sampled, "generation_cpu_seconds")
    return {
        "claim": f"training {TRAINING_AIM}×, whole step {STEP_AIM}× as fast as TRL, {MEMORY_AIM} of its memory",
        "threads": job["threads"],
        "load": round(os.getloadavg()[0], 1),
        "completions": count,
        "bf16": job["bf16"],
        "ours": {
            "training_completions_per_second": round(count / our_training, 2),
            "training_seconds": [round(value, 2) for row in trained for value in row["training_seconds"]],
            "generation_seconds": [round(value, 2) for row in sampled for value in row["generation_seconds"]],
            "trainer_peak_mib": peak(trained) >> 20,
            "with_checkpointing": {
                "training_seconds": [round(value, 2) for row in lean for value in row["training_seconds"]],
                "training_cpu_seconds": [round(value, 2) for row in lean for value in row["training_cpu_seconds"]],
                "peak_mib": peak(lean) >> 20,
            },
            "engine_peak_mib": peak(sampled) >> 20,
        },
        "trl_training": {
            name: {
                "completions_per_second": round(count / middle(rows, "training_seconds"), 2),
                "training_seconds": [round(value, 2) for row in rows for value in row["training_seconds"]],
                "peak_mib": peak(rows) >> 20,
            }
            for name, rows in settings.items()
        },
        "trl_whole_step": {
            "generation_seconds": [round(value, 2) for row in whole for value in row["generation_seconds"]],
            "step_seconds": [round(value, 2) for row in whole for value in row["step_seconds"]],
            "peak_mib": peak(whole) >> 20,
        },
        "training_ratio": round(training_ratio, 2),
        "training_ratio_of_cpu_seconds": round(
            middle(settings[best], "training_cpu_seconds") / middle(trained, "training_cpu_seconds"), 2
        ),
        "step_ratio": round(step_ratio, 2),
        "step_ratio_of_cpu_seconds": round(middle(whole, "step_cpu_seconds") / our_cpu, 2),
        "fastest_trainer_memory_ratio": round(peak(trained) / their_memory, 2),
        "leanest_trainer_memory_ratio": round(leanest / their_memory, 2),
        "trainer_and_engine_memory_ratio": round(memory / their_memory, 2),
        "holds": training_ratio >= TRAINING_AIM and step_ratio >= STEP_AIM and memory <= MEMORY_AIM * their_memory,
    }


if __name__ == "__main__":
    sys.exit(main())
