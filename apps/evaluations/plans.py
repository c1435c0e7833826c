"""The plan of an evaluation: who is compared, on what, in which order, with which seeds. Fixed and hashed first."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from apps.policies.models import BaseModel, Policy
from apps.runs.models import Checkpoint
from apps.tasks.models import Suite, Task
from gpu_workers.contracts.messages import Sampling

_SEED_SPAN = 2**31 - 1


@dataclass(frozen=True)
class ArmSpec:
    """One policy, or one checkpoint of a run. `num_shots` None: the policy's own."""

    label: str
    policy: Policy | None = None
    checkpoint: Checkpoint | None = None
    num_shots: int | None = None

    @property
    def base_model(self) -> BaseModel:
        if self.policy is not None:
            return self.policy.base_model
        assert self.checkpoint is not None
        return self.checkpoint.run.policy.base_model

    @property
    def shots(self) -> int:
        if self.num_shots is not None:
            return self.num_shots
        return self.policy.num_shots if self.policy is not None else 0

    @property
    def whole_weights(self) -> bool:
        if self.policy is not None:
            return self.policy.whole_weights
        return self.checkpoint is not None and self.checkpoint.run.whole_weights

    def identity(self) -> dict[str, Any]:
        """What makes the arm what it is, for the hash of the plan."""
        subject = self.policy or self.checkpoint
        assert subject is not None
        digest = self.policy.adapter_sha256 if self.policy else getattr(subject, "sha256", "")
        return {
            "label": self.label,
            "subject": str(subject.pk),
            "adapter_sha256": digest,
            "base_model": self.base_model.slug,
            "num_shots": self.shots,
        }


def plan_hash(
    *, suite: Suite, split: str, tasks: Sequence[Task], arms: Sequence[ArmSpec], samples: int, sampling: Sampling
) -> str:
    """SHA-256 over everything that decides what will be run."""
    plan = {
        "suite": str(suite),
        "content_hash": suite.content_hash,
        "split": split,
        "tasks": [(task.key, task.task_hash) for task in tasks],
        "arms": [arm.identity() for arm in arms],
        "samples": samples,
        "sampling": msgspec.to_builtins(sampling),
    }
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()


def task_seed(seed: int, task_hash: str) -> int:
    """Seed of a task's episodes, the same in every arm."""
    digest = hashlib.sha256(f"{seed}:{task_hash}".encode()).digest()
    return int.from_bytes(digest[:8]) % _SEED_SPAN
