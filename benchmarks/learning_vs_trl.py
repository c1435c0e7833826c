"""Claim: held-out gain per CPU-minute is several times that of TRL's GRPOTrainer on the same suite.

Same model (SmolLM2-135M-Instruct, LoRA r=16 on all linear layers), same one-turn tasks in the same order (four numbers
to put in order, two worked examples in the prompt), same reward, group and batch size (8 × 8), learning rate, clip,
aggregation, no KL. Our side is the production engine and trainer in a synchronous loop; TRL samples by transformers'
`generate` and trains at the setting that `trainer_vs_trl.py` found best. CPU seconds of all processes count, loading
and evaluation do not. Adapters of both sides are judged by one engine, greedily, on the same 96 held-out questions.
Prints one JSON object. Run: `python benchmarks/learning_vs_trl.py [--home HOME] [--figure FILE.svg]` (15 minutes).
"""

import argparse
import asyncio
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from _figure import Line, Panel, draw  # noqa: E402
from _number_tasks import conversation, questions, reward  # noqa: E402

AIM = 4.0
NUM_HELDOUT, NEW_TOKENS, PROMPTS, GROUP_SIZE = 96, 20, 8, 8


class Judge:
    """An engine process, its client and the model's chat template."""

    def __init__(self, model: Path, threads: int, log: Path) -> None:
        from _engine_sides import embedded_side

        from gpu_workers.sessions.chat import ChatTemplate

        os.environ["OMP_NUM_THREADS"] = str(threads)
        self.process, self.template = embedded_side(model, log), ChatTemplate(model)
        self.calls = 0

    def prompt(self, question: str) -> list[int]:
        from gpu_workers.contracts.tasks import Message

        return self.template.render_prompt([Message(**turn) for turn in conversation(question)])

    def text(self, ids: list[int]) -> str:
        return self.template.decode([i for i in ids if i != self.template.eos_id])

    async def answers(self, client: Any, asked: list[str], adapter: str, temperature: float) -> list[Any]:
        """One answer to each question, in order."""
        from gpu_workers.contracts.messages import Sampling
        from gpu_workers.contracts.seams import GenerateRequest

        requests = []
        for question in asked:
            self.calls += 1
            sampling = Sampling(max_new_tokens=NEW_TOKENS, temperature=temperature, seed=self.calls)
            requests.append(
                GenerateRequest(self.prompt(question), sampling, adapter=adapter, stop_token_ids=[self.template.eos_id])
            )
        return list(await asyncio.gather(*map(client.generate, requests)))

    async def success(self, client: Any, asked: list[str], folder: Path | None) -> float:
        """Share of held-out questions answered rightly, greedily, by an adapter (None: the base model)."""
        if folder is not None:
            await client.load_adapter("judged", str(folder))
        found = await self.answers(client, asked, "judged" if folder else "", 0.0)
        if folder is not None:
            await client.unload_adapter("judged")
        return sum(reward(q, self.text(a.output_ids)) == 1.0 for q, a in zip(asked, found, strict=True)) / len(asked)


def ours(job: dict[str, Any]) -> dict[str, Any]:
    """Sample, reward, train, export, install; step after step. In a process of its own."""
    return asyncio.run(_ours(job))


async def _ours(job: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch

    from gpu_workers.contracts.groups import EpisodeTokens, encode_group
    from gpu_workers.contracts.runspec import parse_run_spec
    from gpu_workers.contracts.seams import TrainGroup
    from gpu_workers.engines.sglang import SGLangEngine
    from gpu_workers.models import smollm2
    from gpu_workers.models.folder import read_description
    from gpu_workers.process import keep_freed_memory
    from gpu_workers.trainer.backend import BaseModel, PolicyTrainer

    keep_freed_memory()
    torch.set_flush_denormal(True)
    torch.set_num_threads(job["threads"])
    model, folder = Path(job["model"]), Path(job["folder"])
    rates = {"learning_rate": job["learning_rate"], "warmup_steps": job["warmup_steps"]}
    rollout = {"max_new_tokens": NEW_TOKENS, "max_staleness": 0}
    spec = parse_run_spec(
        {"suite": "numbers", "policy": smollm2.NAME, "steps": job["steps"], "seed": job["seed"]}
        | {"optimiser": rates, "rollout": rollout}
    )
    trainer = PolicyTrainer(spec, BaseModel(smollm2.NAME, model, read_description(model).fingerprint))
    judge = Judge(model, job["threads"], folder / "engine.log")
    judge.calls = job["seed"] * 1_000_000
    client = SGLangEngine(judge.process.url)
    seconds, rewards = [], []
    try:
        judge.process.wait()
        adapter = ""
        for step in range(job["steps"]):
            began = judge.process.cpu_seconds()
            asked = job["questions"][step * PROMPTS : (step + 1) * PROMPTS]
            members = [question for question in asked for _ in range(GROUP_SIZE)]
            found = await judge.answers(client, members, adapter, 1.0)
            scores = [reward(q, judge.text(a.output_ids)) for q, a in zip(members, found, strict=True)]
            episodes = []
            for question, answer, score in zip(members, found, scores, strict=True):
                prompt = judge.prompt(question)
                blank, length = len(prompt), len(answer.output_ids)
                episodes.append(
                    EpisodeTokens(
                        np.array([*prompt, *answer.output_ids], dtype=np.int32),
                        np.array([0] * blank + [1] * length, dtype=np.uint8),
                        np.array([0.0] * blank + list(answer.logprobs), dtype=np.float32),
                        np.array([-1] * blank + [step] * length, dtype=np.int32),
                        score,
                    )
                )
            groups = [
                TrainGroup(f"g{step}-{i}", 0, encode_group(episodes[i * GROUP_SIZE : (i + 1) * GROUP_SIZE], {}))
                for i in range(PROMPTS)
            ]
            trainer.step(f"b{step}", groups)
            target = folder / f"step-{step + 1}"
            trainer.policy.export(target, smollm2.NAME)
            await client.load_adapter(f"v{step + 1}", str(target / "adapter"))
            if adapter:
                await client.unload_adapter(adapter)
            adapter = f"v{step + 1}"
            seconds.append(judge.process.cpu_seconds() - began)
            rewards.append(sum(scores) / len(scores))
    finally:
        await client.close()
        judge.process.stop()
    return {"cpu_seconds": seconds, "rewards": rewards}


async def _judge(model: Path, threads: int, folders: dict[str, Path | None], log: Path) -> dict[str, float]:
    from gpu_workers.engines.sglang import SGLangEngine

    judge = Judge(model, threads, log)
    client = SGLangEngine(judge.process.url)
    try:
        judge.process.wait()
        asked = questions("heldout", NUM_HELDOUT)
        return {name: await judge.success(client, asked, folder) for name, folder in folders.items()}
    finally:
        await client.close()
        judge.process.stop()


def main() -> int:
    """Both sides, one after the other for each seed, then one judge for all; exit code 1 when the claim fails."""
    from trainer_vs_trl import run_side, trl_python

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=ROOT / ".ratchet")
    parser.add_argument("--trl-python", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=8, help="of TRL")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="of TRL")
    parser.add_argument("--prefix", default="", help="command before each measured process")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        kind, path = options.side
        job = json.loads(Path(path).read_text())
        if kind == "ours":
            result = ours(job)
        else:
            folders = {name: Path(folder) if folder else None for name, folder in job["folders"].items()}
            result = asyncio.run(_judge(Path(job["model"]), job["threads"], folders, Path(job["log"])))
        print("RESULT " + json.dumps(result))
        return 0

    from gpu_workers.models import smollm2
    from gpu_workers.trainer.model import compute_dtype

    home = options.home.resolve()
    model = smollm2.prepare(home)
    prefix = shlex.split(options.prefix)
    own = [*prefix, sys.executable, __file__, "--side"]
    theirs = [*prefix, str(options.trl_python or trl_python(home)), str(ROOT / "benchmarks/_trl_learns.py")]
    every = 2
    job = {
        "model": str(model), "threads": options.threads, "steps": options.steps, "every": every,
        "questions": questions("train", options.steps * PROMPTS), "prompts_per_batch": PROMPTS,
        "group_size": GROUP_SIZE, "new_tokens": NEW_TOKENS, "learning_rate": 3e-4, "warmup_steps": 2,
        "bf16": "bfloat16" in str(compute_dtype(model)), "micro_batch": options.micro_batch,
        "gradient_checkpointing": options.gradient_checkpointing,
    }  # fmt: skip
    sides: dict[str, list[dict[str, Any]]] = {"ours": [], "trl": []}
    with tempfile.TemporaryDirectory(prefix="ratchet-bench-") as scratch:
        folders: dict[str, str] = {"start": ""}
        for seed in range(options.seeds):
            for name, command in (("ours", [*own, "ours"]), ("trl", theirs)):
                folder = Path(scratch) / f"{name}-{seed}"
                folder.mkdir()
                sides[name].append(run_side(command, job | {"seed": seed, "folder": str(folder)}))
                for step in range(every, options.steps + 1, every):
                    adapter = folder / f"step-{step}" / ("adapter" if name == "ours" else "")
                    folders[f"{name}-{seed}-{step}"] = str(adapter)
        asked = {"model": str(model), "threads": options.threads, "folders": folders, "log": f"{scratch}/judge.log"}
        success = run_side([*own, "judge"], asked)
    result = compare(sides, success, every)
    if options.figure:
        options.figure.write_text(figure(result))
    print(json.dumps(result, indent=2))
    return 0 if result["holds"] else 1


def compare(sides: dict[str, list[dict[str, Any]]], success: dict[str, float], every: int) -> dict[str, Any]:
    """Success by CPU-minutes, and the gain a CPU-minute until each side's best step."""
    curves: dict[str, list[list[list[float]]]] = {}
    gains: dict[str, list[float]] = {}
    for name, runs in sides.items():
        curves[name], gains[name] = [], []
        for seed, run in enumerate(runs):
            minutes = [sum(run["cpu_seconds"][:step]) / 60 for step in range(len(run["cpu_seconds"]) + 1)]
            curve = [[0.0, success["start"]]]
            curve += [
                [round(minutes[step], 3), round(success[f"{name}-{seed}-{step}"], 4)]
                for step in range(every, len(minutes), every)
            ]
            curves[name].append(curve)
            gains[name].append(max((share - success["start"]) / spent for spent, share in curve[1:]))
    ratio = _mean(gains["ours"]) / max(_mean(gains["trl"]), 1e-9)
    return {
        "claim": f"held-out gain per CPU-minute at least {AIM} × TRL's",
        "heldout": NUM_HELDOUT,
        "load": round(os.getloadavg()[0], 1),
        "time": time.strftime("%Y-%m-%d"),
        "start": round(success["start"], 4),
        "success_by_cpu_minutes": curves,
        "rewards": {name: [[round(r, 3) for r in run["rewards"]] for run in runs] for name, runs in sides.items()},
        "best_gain_per_cpu_minute": {name: [round(value, 4) for value in values] for name, values in gains.items()},
        "ratio": round(ratio, 2),
        "holds": ratio >= AIM and _mean(gains["ours"]) > 0,
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def figure(result: dict[str, Any]) -> str:
    names = {"ours": "Ratchet", "trl": "TRL 1.16.0"}
    lines = [
        Line(names[name], [(x, y) for x, y in curve])
        for name, curves in result["success_by_cpu_minutes"].items()
        for curve in curves
    ]
    return draw([Panel("Held-out success, greedy", "CPU-minutes", lines)])


if __name__ == "__main__":
    sys.exit(main())
