"""What the demo trains and measures: the RunSpecs, sized for two CPU cores."""

from typing import Any

BASE_MODEL = "smollm2-135m-instruct"
TOOL_PROJECT = "tool-use"
CALL_PROJECT = "function-calling"

# Run A: asynchronous multi-turn RL, tools in sandboxes, from a prompt with two worked examples.
TOOL_RL: dict[str, Any] = {
    "name": "Tool use: RL from the prompted policy",
    "suite": "toolbox",
    "policy": "prompted",
    "steps": 8,
    "seed": 1,
    "algorithm": {"kind": "grpo"},
    "rollout": {"prompts_per_batch": 8, "group_size": 8, "max_staleness": 1, "max_new_tokens": 40, "num_shots": 2},
    "optimiser": {"learning_rate": 3e-4, "warmup_steps": 3},
    "evaluation": {"dev_every": 4, "dev_tasks": 32},
}

# Run B: supervised baseline, then RL from it; and the same supervised policy trained on, at equal compute.
CALL_SFT: dict[str, Any] = {
    "name": "Function calling: supervised, 1 epoch",
    "suite": "bfcl",
    "policy": "prompted",
    "seed": 0,
    "algorithm": {"kind": "sft", "sft_batch_size": 8, "sft_epochs": 1.0},
    "rollout": {"num_shots": 0, "max_new_tokens": 56},
    "optimiser": {"learning_rate": 5e-4, "warmup_steps": 3},
    "evaluation": {"dev_tasks": 0},
}

CALL_SFT_MORE: dict[str, Any] = {
    **CALL_SFT,
    "name": "Function calling: supervised, 2 epochs (equal compute)",
    "policy": "",  # the supervised policy of the run above
    "seed": 1,
}

CALL_RL: dict[str, Any] = {
    "name": "Function calling: RL from the supervised policy",
    "suite": "bfcl",
    "policy": "",
    "steps": 12,
    "seed": 1,
    "algorithm": {"kind": "grpo"},
    "rollout": {"prompts_per_batch": 8, "group_size": 16, "max_staleness": 1, "max_new_tokens": 56, "num_shots": 0},
    "optimiser": {"learning_rate": 3e-4, "warmup_steps": 2},
    "evaluation": {"dev_tasks": 96, "temperature": 1.0},
}
# Greedy decoding hides most of what this run changes: it is judged as it is trained, and as the gateway samples by
# default.
CALL_GATE_SAMPLING: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 56}
