"""Claim: a LoRA step on packed groups trains at least 1.7× as many completions per second as padded batches.

Both sides do the same work in one run: SmolLM2-135M, LoRA r=16 on all linear layers, bfloat16 where the processor has
it, groups of 8 completions with a common prompt, the policy-gradient loss at the sampled positions. The padded side is
transformers with PEFT, its logits restricted to the completion (as TRL does), gradient checkpointing off, at its best
micro-batch. Completions are random tokens, so nothing but the prompt is shared: real groups share more.
Prints one JSON object. Run: `python benchmarks/packed_vs_padded.py [--home HOME]`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from gpu_workers.contracts.groups import EpisodeTokens, encode_group
from gpu_workers.contracts.runspec import parse_run_spec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.models import smollm2
from gpu_workers.models.folder import read_description
from gpu_workers.process import keep_freed_memory
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer

PROMPT_TOKENS, COMPLETION_TOKENS, GROUP_SIZE = 145, 60, 8
AIM = 1.7


def make_episodes(num_groups: int) -> list[list[EpisodeTokens]]:
    """Groups with random prompts and completions; half of each group is rewarded."""
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(num_groups):
        prompt = rng.integers(100, 40_000, PROMPT_TOKENS)
        members = []
        for index in range(GROUP_SIZE):
            tokens = np.concatenate([prompt, rng.integers(100, 40_000, COMPLETION_TOKENS)]).astype(np.int32)
            mask = np.concatenate([np.zeros(PROMPT_TOKENS), np.ones(COMPLETION_TOKENS)]).astype(np.uint8)
            logprobs = np.where(mask == 1, -10.0, 0.0).astype(np.float32)
            members.append(
                EpisodeTokens(tokens, mask, logprobs, np.where(mask == 1, 0, -1).astype(np.int32), index % 2)
            )
        groups.append(members)
    return groups


def packed_step(home: Path, episodes: list[list[EpisodeTokens]]) -> Callable[[], object]:
    """One step of the trainer: decode, pack, forward, backward, clip, AdamW."""
    folder = smollm2.prepare(home)
    spec = parse_run_spec({"suite": "bench", "policy": smollm2.NAME})
    trainer = PolicyTrainer(spec, BaseModel(smollm2.NAME, folder, read_description(folder).fingerprint))
    groups = [TrainGroup(f"g{i}", 0, encode_group(members, {})) for i, members in enumerate(episodes)]
    return lambda: trainer.step("batch", groups)


def padded_step(home: Path, episodes: list[list[EpisodeTokens]], micro_batch: int) -> Callable[[], object]:
    """The same step with transformers and PEFT on rows of equal length."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    folder = smollm2.prepare(home)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=padded_dtype(folder))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM"))
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0)
    flat = [member for members in episodes for member in members]
    tokens = torch.tensor(np.stack([member.tokens for member in flat]).astype(np.int64))
    advantage = torch.tensor([1.0 if member.reward else -1.0 for member in flat])

    def step() -> None:
        for rows, sign in zip(tokens.split(micro_batch), advantage.split(micro_batch), strict=True):
            logits = model(rows, logits_to_keep=COMPLETION_TOKENS + 1).logits[:, :-1].float()
            chosen = logits.log_softmax(-1).gather(2, rows[:, -COMPLETION_TOKENS:, None]).squeeze(2)
            ratio = (chosen - chosen.detach()).exp()
            (-(ratio * sign[:, None]).sum() / (len(flat) * COMPLETION_TOKENS)).backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def padded_dtype(folder: Path) -> torch.dtype:
    """The dtype our side chooses, so that both compute alike."""
    from gpu_workers.trainer.model import compute_dtype

    return compute_dtype(folder)


def measure(step: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median wall and CPU seconds of a step, after one to warm up."""
    step()
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return statistics.median(walls), statistics.median(cpus)


def main() -> int:
    """Run both sides and print the comparison; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "ratchet-bench")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8, 16])
    options = parser.parse_args()
    keep_freed_memory()  # both sides profit
    torch.set_flush_denormal(True)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    episodes = make_episodes(options.groups)
    num_completions = options.groups * GROUP_SIZE
    num_tokens = num_completions * (PROMPT_TOKENS + COMPLETION_TOKENS)

    def row(wall: float, cpu: float) -> dict[str, float]:
        return {
            "step_seconds": round(wall, 2),
            "completions_per_second": round(num_completions / wall, 2),
            "tokens_per_cpu_second": round(num_tokens / cpu, 1),
        }

    sides: dict[str, dict[str, float]] = {"packed": row(*measure(packed_step(options.home, episodes), options.repeats))}
    for size in options.micro_batches:
        sides[f"padded, micro-batch {size}"] = row(*measure(padded_step(options.home, episodes, size), options.repeats))
    best = max(side["tokens_per_cpu_second"] for name, side in sides.items() if name != "packed")
    ratio = sides["packed"]["tokens_per_cpu_second"] / best
    result = {
        "claim": "packed groups train at least 1.7 times as fast as padded batches",
        "threads": torch.get_num_threads(),
        "completions": num_completions,
        "tokens": num_tokens,
        "sides": sides,
        "ratio_tokens_per_cpu_second": round(ratio, 2),
        "aim": AIM,
    }
    print(json.dumps(result, indent=2))
    return 0 if ratio >= AIM else 1


if __name__ == "__main__":
    sys.exit(main())
