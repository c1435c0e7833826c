"""What a submission would run, in a line for each thing that decides what happens; --json has every field."""

from typing import Any

from ratchet_client.types import ValidatedSpec


def spec_fields(wanted: ValidatedSpec) -> dict[str, object]:
    """The lines, by their title."""
    spec = wanted["spec"]
    fields: dict[str, object] = {"name": spec["name"], "suite": wanted["suite"], "policy": wanted["policy"]}
    fields |= _supervised(spec) if spec["algorithm"]["kind"] == "sft" else _reinforced(spec)
    optimiser, most = spec["optimiser"], spec["max_train_tasks"]
    fields["update"] = _update(spec)
    fields["learning rate"] = (
        f"{optimiser['learning_rate']:g}, {_schedule(optimiser)}, {optimiser['warmup_steps']} steps of warm-up"
    )
    fields["train tasks"] = f"at most {most}" if most else "all"
    fields["evaluation"] = _evaluation(spec["evaluation"])
    return fields | {"seed": spec["seed"], "hash": wanted["spec_hash"]}


def _supervised(spec: dict[str, Any]) -> dict[str, object]:
    algorithm = spec["algorithm"]
    epochs, size = algorithm["sft_epochs"], algorithm["sft_batch_size"]
    return {"algorithm": "sft", "steps": f"{epochs:g} epoch{'' if epochs == 1 else 's'} in batches of {size} examples"}


def _reinforced(spec: dict[str, Any]) -> dict[str, object]:
    algorithm, rollout = spec["algorithm"], spec["rollout"]
    groups, size, staleness = rollout["prompts_per_batch"], rollout["group_size"], rollout["max_staleness"]
    names = [f"{name} {algorithm[name]}" for name in ("advantage", "aggregation", "correction")]
    return {
        "algorithm": f"{algorithm['kind']}, {', '.join(names)}",
        "steps": f"{spec['steps']}, each on {groups} groups of {size} episodes",
        "staleness": f"at most {staleness} version{'' if staleness == 1 else 's'}",
        "sampling": f"temperature {rollout['temperature']:g}, at most {rollout['max_new_tokens']} tokens a turn",
    }


def _update(spec: dict[str, Any]) -> str:
    update = spec["trainer"]["update"]
    return f"lora, rank {spec['lora']['rank']}, alpha {spec['lora']['alpha']:g}" if update == "lora" else str(update)


def _schedule(optimiser: dict[str, Any]) -> str:
    return "linear" if optimiser["decay"] else str(optimiser["schedule"])


def _evaluation(evaluation: dict[str, Any]) -> str:
    every, tasks = evaluation["dev_every"], evaluation["dev_tasks"]
    if not tasks:
        return "none"
    return f"at most {tasks} dev tasks, {f'every {every} steps' if every else 'at the end'}"
