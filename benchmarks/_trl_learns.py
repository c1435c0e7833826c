"""TRL's side of `learning_vs_trl.py`, run by the Python of TRL's own virtual environment.

Reads a JSON job from the path given, trains, saves the adapter of every `every`-th step below its folder and prints
one line, `RESULT` and a JSON object: CPU seconds and mean reward of each step (saving not counted).
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _number_tasks import conversation, reward
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

JOB = json.loads(Path(sys.argv[1]).read_text())
REWARDS: list[float] = []


class CpuTrainer(GRPOTrainer):
    """Notes the CPU time at which the sampling of each step began."""

    began = 0.0

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.began = time.process_time()
        return super()._generate_and_score_completions(inputs)


class StepEnds(TrainerCallback):
    """CPU seconds of each step; the adapter of some."""

    def __init__(self, trainer: CpuTrainer) -> None:
        self.trainer, self.seconds = trainer, list[float]()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.process_time() - self.trainer.began)
        if len(self.seconds) % JOB["every"] == 0:
            self.trainer.model.save_pretrained(Path(JOB["folder"]) / f"step-{len(self.seconds)}")


def right(prompts: list[Any], completions: list[Any], question: list[str], **_: Any) -> list[float]:
    """The suite's reward."""
    rewards = [reward(q, c[0]["content"]) for q, c in zip(question, completions, strict=True)]
    REWARDS.append(sum(rewards) / len(rewards))
    return rewards


def main() -> None:
    torch.set_num_threads(JOB["threads"])
    prompts, size = JOB["prompts_per_batch"], JOB["group_size"]
    with tempfile.TemporaryDirectory() as scratch:
        config = GRPOConfig(
            output_dir=scratch,
            use_cpu=True,
            bf16=JOB["bf16"],
            model_init_kwargs={"dtype": "bfloat16" if JOB["bf16"] else "float32"},
            per_device_train_batch_size=JOB["micro_batch"],
            gradient_accumulation_steps=prompts * size // JOB["micro_batch"],
            gradient_checkpointing=JOB["gradient_checkpointing"],
            num_generations=size,
            max_completion_length=JOB["new_tokens"],
            generation_kwargs={"top_k": 0},
            temperature=1.0,
            beta=0.0,
            learning_rate=JOB["learning_rate"],
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=JOB["warmup_steps"],
            adam_beta2=0.95,
            max_grad_norm=1.0,
            max_steps=JOB["steps"],
            shuffle_dataset=False,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            seed=JOB["seed"],
        )
        rows = {"prompt": [conversation(q) for q in JOB["questions"]], "question": JOB["questions"]}
        trainer = CpuTrainer(
            model=JOB["model"],
            args=config,
            processing_class=AutoTokenizer.from_pretrained(JOB["model"]),
            reward_funcs=right,
            train_dataset=Dataset.from_dict(rows),
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        ends = StepEnds(trainer)
        trainer.add_callback(ends)
        trainer.train()
    print("RESULT " + json.dumps({"cpu_seconds": ends.seconds, "rewards": REWARDS}))


main()
