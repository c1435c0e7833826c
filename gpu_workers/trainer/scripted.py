"""A trainer without a model, for tests of everything around it: exact, instant, and with the real folder layout."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from gpu_workers.contracts import checkpoints as layout
from gpu_workers.contracts.runspec import AlgorithmSpec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.batches import assemble
from gpu_workers.trainer.model import ADAPTER_CONFIG
from gpu_workers.trainer.sharded import load_sharded, save_sharded
from gpu_workers.trainer.world import ALONE

CONTEXT_LENGTH = 1 << 20
VOCABULARY_SIZE = 1 << 30


class ScriptedTrainer:
    """TrainerBackend whose "weights" are a digest of every batch seen."""

    def __init__(self, *, run_id: str = "run", attempt: int = 1) -> None:
        self.run_id, self.attempt = run_id, attempt
        self.version = 0
        self.batch_ids: list[str] = []
        self.digest = hashlib.sha256().digest()

    @property
    def weights_file(self) -> str:
        return f"{layout.ADAPTER}/{layout.ADAPTER_WEIGHTS}"

    def step(self, batch_id: str, groups: Sequence[TrainGroup]) -> tuple[dict[str, float], dict[str, str]]:
        """Count, skip what the real trainer would skip, and fold the batch into the digest."""
        batch = assemble(
            groups,
            AlgorithmSpec(),
            max_tokens=CONTEXT_LENGTH,
            context_length=CONTEXT_LENGTH,
            vocab_size=VOCABULARY_SIZE,
        )
        seen = batch_id.encode() + b"".join(group.file for group in groups)
        self.digest = hashlib.sha256(self.digest + seen).digest()
        self.version += 1
        self.batch_ids.append(batch_id)
        metrics = batch.statistics.metrics() | {"num_sampled_tokens": float(batch.num_sampled_tokens)}
        return {f"train/{name}": value for name, value in metrics.items()}, batch.skipped

    def save(self, folder: Path) -> None:
        """Write a checkpoint with the digest in place of weights."""
        adapter = folder / layout.ADAPTER
        adapter.mkdir(parents=True, exist_ok=True)
        (adapter / layout.ADAPTER_WEIGHTS).write_bytes(self.digest)
        (adapter / ADAPTER_CONFIG).write_text("{}\n")
        state = checkpoints.TrainerState(
            version=self.version,
            batch_ids=self.batch_ids,
            num_updates=self.version,
            num_skipped_updates=0,
            random_states={},
        )
        digest = torch.frombuffer(bytearray(self.digest), dtype=torch.uint8)
        save_sharded(folder / layout.STATE, {"digest": digest}, ALONE)
        checkpoints.write_trainer(folder, state)
        identity = layout.Identity(
            run_id=self.run_id, attempt=self.attempt, version=self.version, spec_hash="", base_fingerprint=""
        )
        checkpoints.seal(folder, identity)

    def load(self, folder: Path) -> None:
        """Resume exactly. Raises CheckpointError."""
        checkpoints.check_folder(folder)
        state = checkpoints.read_trainer(folder)
        digest = torch.zeros(len(self.digest), dtype=torch.uint8)
        load_sharded(folder / layout.STATE, {"digest": digest}, ALONE)
        self.digest = digest.numpy().tobytes()
        self.version, self.batch_ids = state.version, list(state.batch_ids)
