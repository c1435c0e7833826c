"""Made-up specs and groups for the tiny model."""

import numpy as np

from gpu_workers.contracts.groups import EpisodeTokens, encode_group
from gpu_workers.contracts.runspec import RunSpec, parse_run_spec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer


def make_spec(**changes: object) -> RunSpec:
    data: dict[str, object] = {
        "suite": "s",
        "policy": "tiny",
        "steps": 4,
        "lora": {"rank": 4, "alpha": 8.0},
        "optimiser": {"learning_rate": 1e-2, "warmup_steps": 0},
        "rollout": {"group_size": 4, "max_new_tokens": 16},
    }
    return parse_run_spec(data | changes)


def make_episode(
    rng: np.random.Generator, prompt: list[int], completion: list[int], reward: float | None, version: int = 0
) -> EpisodeTokens:
    tokens = np.array(prompt + completion, dtype=np.int32)
    mask = np.array([0] * len(prompt) + [1] * len(completion), dtype=np.uint8)
    logprobs = np.where(mask == 1, -rng.uniform(3.5, 5.0, len(tokens)), 0.0).astype(np.float32)
    return EpisodeTokens(tokens, mask, logprobs, np.where(mask == 1, version, -1).astype(np.int32), reward)


def make_groups(seed: int, num_groups: int = 3, size: int = 4, *, turns: int = 1) -> list[TrainGroup]:
    """Groups with a shared prompt, completions that sometimes agree in their first tokens, and mixed rewards."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(num_groups):
        prompt = rng.integers(4, 60, 12).tolist()
        episodes = []
        for index in range(size):
            completion = [*rng.integers(4, 7, 3).tolist(), *rng.integers(4, 60, int(rng.integers(1, 9))).tolist()]
            episode = make_episode(rng, prompt, completion, float(index % 2))
            if turns > 1 and len(completion) > 3:
                episode.mask[len(prompt) + 1] = 0  # an observation inside: the mask has a hole
                episode.versions[len(prompt) + 1] = -1
            episodes.append(episode)
        groups.append(TrainGroup(f"g{seed}-{number}", age=0, file=encode_group(episodes, {})))
    return groups


def make_trainer(base: BaseModel, spec: RunSpec, **options: object) -> PolicyTrainer:
    return PolicyTrainer(spec, base, **options)  # type: ignore[arg-type]
