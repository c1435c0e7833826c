"""Parts of the scripted data plane: what can go wrong, a trainer's memory, episodes, checkpoints, commits."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.test import TestCase

from gpu_workers.contracts.checkpoints import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    FORMAT_VERSION,
    MANIFEST,
    MODEL,
    STATE,
    TRAINER,
    Identity,
    Manifest,
)  # fmt: skip
from gpu_workers.contracts.enums import ReasonCode, StopReason, Verdict
from gpu_workers.contracts.groups import EpisodeRecord
from gpu_workers.contracts.messages import TrainJob
from ratchet.store import get_store


@dataclass
class Chaos:
    """Probabilities of what can go wrong, each per event."""

    infrastructure_error: float = 0.0
    engine_error: float = 0.0
    lost_rollout: float = 0.0  # the worker dies with its group
    zero_variance: float = 0.0
    duplicate: float = 0.0  # a report arrives twice
    resent: float = 0.0  # a group's result is reported again under another id
    reorder: float = 0.0  # any waiting report is delivered instead of the oldest
    trainer_crash: float = 0.0  # after the step was made durable, before or after it was reported
    start_crash: float = 0.0  # the trainer dies while it loads
    silent_crash: float = 0.0  # the trainer's host dies: nobody says so
    zombie: float = 0.0  # a crashed trainer lives on and reports
    fleet_refusal: float = 0.0
    slow_rollout: float = 0.0  # a group is kept back for many events


@dataclass
class ScriptedTrainer:
    """One trainer attempt: takes its batches in order of index, knows what its checkpoint holds."""

    job: TrainJob
    version: int = 0
    batch_ids: list[str] = field(default_factory=list)
    started: bool = False
    dead: bool = False
    finished: bool = False


@contextmanager
def commit() -> Iterator[None]:
    """A transaction that commits: what waits for the commit runs at the end."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        yield


def episode(index: int, reward: float | None, *, version: int = 0, **changes: Any) -> EpisodeRecord:
    """A finished two-turn episode."""
    scored = reward is not None
    success = scored and reward >= 1.0
    values: dict[str, Any] = {
        "index": index, "seed": index, "stop_reason": StopReason.ANSWERED, "answer": f"{reward}",
        "verdict": Verdict.PASS if success else Verdict.FAIL if scored else Verdict.ERROR,
        "reward": reward, "success": success,
        "reason_code": ReasonCode.OK if success else ReasonCode.WRONG_ANSWER if scored else ReasonCode.VERIFIER_CRASH,
        "num_turns": 2, "num_tool_calls": 1, "num_prompt_tokens": 20, "num_sampled_tokens": 10, "num_total_tokens": 40,
        "min_version": version, "max_version": version, "mean_logprob": -0.5, "engine_seconds": 1.0,
        "queue_seconds": 0.1, "tool_seconds": 0.2 + index / 10, "verifier_seconds": 0.05, "total_seconds": 1.5 + index,
    } | changes  # fmt: skip
    return EpisodeRecord(**values)


def write_checkpoint(key: str, attempt: int, version: int, sha256: str = "b" * 64, *, whole: bool = False) -> None:
    """A complete checkpoint folder, as the trainer lays it out; with `whole` weights only what changed is stored."""
    store = get_store()
    if whole:
        model = {"sha256": sha256, "num_bytes": 5000, "snapshot": False}
        store.write(f"{key}/{MODEL}/{MANIFEST}", json.dumps(model).encode())
        files = {f"{MODEL}/{MANIFEST}": ""}
    else:
        store.write(f"{key}/{ADAPTER}/{ADAPTER_WEIGHTS}", b"weights")
        files = {f"{ADAPTER}/{ADAPTER_WEIGHTS}": sha256}
    identity = Identity(run_id="", attempt=attempt, version=version, spec_hash="", base_fingerprint="")
    manifest = Manifest(format=FORMAT_VERSION, identity=identity, files=files)
    store.write(f"{key}/{STATE}/{TRAINER}", b"{}")
    store.write(f"{key}/{MANIFEST}", msgspec.json.encode(manifest))


def over_the_wire(job: Any, kind: Any) -> Any:
    return msgspec.json.decode(json.dumps(msgspec.to_builtins(job)), type=kind)
