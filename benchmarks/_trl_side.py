"""TRL's side of `trainer_vs_trl.py`, run by the Python of TRL's own virtual environment: one setting, one process.

Reads a JSON job from the path given and prints one line, `RESULT` and a JSON object: seconds of each measured step,
split into its generation and its training part, and the process's peak memory in bytes.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

JOB = json.loads(Path(sys.argv[1]).read_text())
GROUP_SIZE = JOB["group_size"]


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that notes, in (wall, CPU) seconds, how long a step takes and how much of it lies before training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generation: list[tuple[float, float]] = []
        self.before_training: list[tuple[float, float]] = []
        self.whole: list[tuple[float, float]] = []
        self.step_began = now()

    def _generate(self, prompts: list[str]) -> Any:
        started = now()
        output = super()._generate(prompts)
        self.generation.append(since(started))
        return output

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.step_began = now()  # what lies between two steps (logs, the data loader) is not counted
        output = super()._generate_and_score_completions(inputs)
        self.before_training.append(since(self.step_began))
        return output


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def since(start: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = now()
    return wall - start[0], cpu - start[1]


class StepEnds(TrainerCallback):
    """Tells the trainer that a step, its optimiser's included, is over."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.whole.append(since(self.trainer.step_began))


def alternate(completions: list[Any], **_: Any) -> list[float]:
    """Rewards: half of each group is right, so that no group is without an advantage."""
    return [float(index % 2) for index in range(len(completions))]


def given(prompts: list[str], _: Any) -> dict[str, Any]:
    """The job's completions in place of sampled ones."""
    index = {prompt: number for number, prompt in enumerate(JOB["texts"])}
    members = [prompts[:place].count(prompt) for place, prompt in enumerate(prompts)]
    return {
        "prompt_ids": [JOB["prompts"][index[prompt]] for prompt in prompts],
        "completion_ids": [JOB["completions"][index[p]][member] for p, member in zip(prompts, members, strict=True)],
        "logprobs": None,
    }


def main() -> None:
    torch.set_num_threads(JOB["threads"])
    size = len(JOB["prompts"]) * GROUP_SIZE
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=JOB["bf16"],
            model_init_kwargs={"dtype": "bfloat16" if JOB["bf16"] else "float32"},
            per_device_train_batch_size=JOB["micro_batch"],
            gradient_accumulation_steps=size // JOB["micro_batch"],
            gradient_checkpointing=JOB["gradient_checkpointing"],
            num_generations=GROUP_SIZE,
            max_completion_length=JOB["new_tokens"],
            generation_kwargs={"min_new_tokens": JOB["new_tokens"], "top_k": 0},
            temperature=1.0,
            learning_rate=2e-4,
            max_grad_norm=1.0,
            max_steps=1 + JOB["steps"],
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            seed=0,
        )
        tokenizer = AutoTokenizer.from_pretrained(JOB["model"])
        trainer = TimedTrainer(
            model=JOB["model"],
            args=config,
            processing_class=tokenizer,
            reward_funcs=alternate,
            train_dataset=Dataset.from_dict({"prompt": JOB["texts"]}),
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
            rollout_func=None if JOB["generate"] else given,
        )
        trainer.add_callback(StepEnds(trainer))
        trainer.train()
    whole, before = trainer.whole[1:], trainer.before_training[1:]
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(
        "RESULT "
        + json.dumps(
            {
                "step_seconds": [wall for wall, _ in whole],
                "step_cpu_seconds": [cpu for _, cpu in whole],
                "generation_seconds": [wall for wall, _ in trainer.generation[1:]],
                "training_seconds": [a[0] - b[0] for a, b in zip(whole, before, strict=True)],
                "training_cpu_seconds": [a[1] - b[1] for a, b in zip(whole, before, strict=True)],
                "peak_memory_bytes": peak,
            }
        )
    )


main()
