"""The LoRA trainer backend: one batch of groups (or supervised examples) in, one policy version and its metrics out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.contracts.runspec import Aggregation, RunSpec, spec_hash
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.batches import TrainBatch, assemble, row_targets
from gpu_workers.trainer.llama import PackedLlama
from gpu_workers.trainer.model import (
    ModelLoadError,
    adapter_parameters,
    copy_parameters,
    load_adapter,
    load_model,
    save_adapter,
)
from gpu_workers.trainer.optimisation import AdapterOptimiser, learning_rate
from gpu_workers.trainer.packing import PackedRow, TokenSequence, pack
from gpu_workers.trainer.passes import PassSums, accumulate, frozen_logprobs, policy_row_loss, supervised_row_loss
from gpu_workers.trainer.world import ALONE, World, shard, whole

MAX_ROW_TOKENS = 1024


@dataclass(frozen=True)
class BaseModel:
    """Where the base model lies and what identifies its bytes."""

    name: str
    folder: Path
    fingerprint: str


class LoraTrainer:
    """TrainerBackend over a packed Llama. `version` counts finished batches.

    A batch whose gradient is NaN or infinite, or whose groups are all skipped, still finishes: the version advances,
    because batch k is by contract what lies between versions k and k+1 and a version that never came would stall the
    run, but weights and optimiser stay as they were and `train/skipped_updates` counts it. The new version then has
    its own number for the same bytes, which is safe; one number for two sets of bytes would not be.
    """

    def __init__(
        self,
        spec: RunSpec,
        base: BaseModel,
        *,
        run_id: str = "run",
        attempt: int = 1,
        total_steps: int = 0,
        max_row_tokens: int = MAX_ROW_TOKENS,
        dtype: torch.dtype | None = None,
        world: World = ALONE,
    ) -> None:
        self.spec, self.base, self.world = spec, base, world
        self.run_id, self.attempt = run_id, attempt
        self.total_steps = total_steps or spec.steps
        self.max_row_tokens = max_row_tokens
        self.version = 0
        self.batch_ids: list[str] = []
        self.num_updates = 0
        self.num_skipped_updates = 0
        torch.manual_seed(spec.seed)
        self.model: PackedLlama = load_model(base.folder, spec.lora, seed=spec.seed, dtype=dtype)
        shard(self.model, world)
        self.parameters = adapter_parameters(self.model)
        self.optimiser = AdapterOptimiser(self.parameters, spec.optimiser)

    @property
    def adapter_name(self) -> str:
        return checkpoints.adapter_name(self.run_id, self.attempt, self.version)

    def start_from(self, adapter_folder: Path, sha256: str = "") -> None:
        """Take the parent policy's adapter as version 0."""
        load_adapter(self.model, adapter_folder, lora=self.spec.lora, sha256=sha256)

    def step(self, batch_id: str, groups: Sequence[TrainGroup]) -> tuple[dict[str, float], dict[str, str]]:
        """Train on one batch. Returns metrics and {group_id: reason} of groups that were not trained on."""
        started = time.perf_counter()
        batch = assemble(
            groups,
            self.spec.algorithm,
            max_tokens=self.spec.rollout.max_new_tokens,
            context_length=self.model.shape.context_length,
        )
        rows = pack(batch.sequences, max_row_tokens=self.max_row_tokens)
        metrics = batch.statistics.metrics()
        metrics |= self._updates(rows, batch)
        self._finish(batch_id)
        seconds = time.perf_counter() - started
        num_trained = sum(len(s.tokens) for s in batch.sequences)
        metrics |= {
            "num_sampled_tokens": float(batch.num_sampled_tokens),
            "num_packed_tokens": float(sum(row.num_nodes for row in rows)),
            "tokens_per_second": num_trained / max(seconds, 1e-9),
            "step_seconds": seconds,
        }
        return {f"train/{name}": value for name, value in metrics.items()}, batch.skipped

    def step_supervised(self, batch_id: str, sequences: Sequence[TokenSequence]) -> dict[str, float]:
        """Train on one batch of supervised examples."""
        started = time.perf_counter()
        rows = pack(sequences, max_row_tokens=self.max_row_tokens)
        weights = episode_token_weights(Aggregation.TOKEN_MEAN, [int(s.mask.sum()) for s in sequences])
        rate = learning_rate(self.spec.optimiser, self.version, self.total_steps)
        sums = accumulate(self.model, rows, 1.0, supervised_row_loss(rows, torch.from_numpy(weights)), self.world)
        norm, applied = self._apply(rate, sums)
        self._finish(batch_id)
        seconds = time.perf_counter() - started
        num_tokens = sum(len(s.tokens) for s in sequences)
        count = max(sums.num_tokens, 1)
        metrics = {
            "loss": sums.loss,
            "entropy": sums.entropy / count,
            "target_probability": sums.probability / count,
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped_updates": float(not applied),
            "num_tokens": float(num_tokens),
            "num_sampled_tokens": float(sums.num_tokens),
            "num_packed_tokens": float(sum(row.num_nodes for row in rows)),
            "tokens_per_second": num_tokens / max(seconds, 1e-9),
            "step_seconds": seconds,
        }
        return {f"train/{name}": value for name, value in metrics.items()}

    def save(self, folder: Path) -> None:
        """Write the checkpoint of the present version into an empty folder, its manifest last. Rank 0 alone writes."""
        tensors: dict[str, Tensor] = {f"master.{name}": whole(value) for name, value in self.parameters.items()}
        tensors |= self.optimiser.tensors()
        if not self.world.is_main:
            return
        adapter = folder / checkpoints.ADAPTER
        served = {name: tensors[f"master.{name}"].to(self.model.dtype) for name in self.parameters}
        sha256, _ = save_adapter(served, adapter, lora=self.spec.lora, base_name=self.base.name)
        manifest = checkpoints.AdapterManifest(
            name=self.adapter_name, version=self.version, sha256=sha256, base_fingerprint=self.base.fingerprint
        )
        (adapter / checkpoints.MANIFEST).write_bytes(msgspec.json.encode(manifest))
        state = checkpoints.TrainerState(
            version=self.version,
            batch_ids=self.batch_ids,
            num_updates=self.num_updates,
            num_skipped_updates=self.num_skipped_updates,
            random_states=checkpoints.capture_random_states(),
        )
        checkpoints.write_state(folder, tensors, state)
        checkpoints.seal(folder, self._identity())

    def load(self, folder: Path) -> None:
        """Resume exactly. Raises CheckpointError for a torn, damaged or foreign checkpoint; nothing changes then."""
        checkpoints.check_folder(folder, spec_hash=spec_hash(self.spec), base_fingerprint=self.base.fingerprint)
        tensors, state = checkpoints.read_state(folder)
        masters = {name[len("master.") :]: value for name, value in tensors.items() if name.startswith("master.")}
        try:
            copy_parameters(self.parameters, masters, source=f"{folder}/{checkpoints.STATE}")
        except ModelLoadError as error:
            raise checkpoints.CheckpointError(str(error)) from error
        self.optimiser.load(tensors)
        self.version, self.batch_ids = state.version, list(state.batch_ids)
        self.num_updates, self.num_skipped_updates = state.num_updates, state.num_skipped_updates
        checkpoints.restore_random_states(state.random_states)

    def _identity(self) -> checkpoints.Identity:
        return checkpoints.Identity(
            run_id=self.run_id,
            attempt=self.attempt,
            version=self.version,
            spec_hash=spec_hash(self.spec),
            base_fingerprint=self.base.fingerprint,
        )

    def _finish(self, batch_id: str) -> None:
        self.version += 1
        self.batch_ids.append(batch_id)

    def _apply(self, rate: float, sums: PassSums) -> tuple[float, bool]:
        """Step the optimiser unless something was refused; returns the gradient norm and whether it was applied."""
        norm, applied = 0.0, False
        if sums.refused:
            self.optimiser.clear()
        else:
            norm, applied = self.optimiser.step(rate)
        self.num_updates += applied
        self.num_skipped_updates += not applied
        return norm, applied

    def _updates(self, rows: Sequence[PackedRow], batch: TrainBatch) -> dict[str, float]:
        rate = learning_rate(self.spec.optimiser, self.version, self.total_steps)
        if not rows:
            return {"learning_rate": rate, "skipped_updates": 1.0}
        temperature, num_updates = self.spec.rollout.temperature, self.spec.algorithm.num_updates_per_batch
        # With a single update π_old is π itself: one forward pass serves both.
        old = frozen_logprobs(self.model, rows, temperature, self.world) if num_updates > 1 else {}
        row_loss = policy_row_loss([row_targets(row, batch) for row in rows], self.spec.algorithm, old)
        total, num_skipped, norm = PassSums(), 0, 0.0
        for _ in range(num_updates):
            sums = accumulate(self.model, rows, temperature, row_loss, self.world)
            for episode, reason in sums.refused:
                batch.skipped[batch.group_ids[episode]] = f"rejected: {reason}"
            norm, applied = self._apply(rate, sums)
            num_skipped += not applied
            total += sums
        count = max(total.num_tokens, 1)
        return total.mismatch.metrics() | {
            "loss": total.loss,
            "entropy": total.entropy / count,
            "clip_fraction": total.num_clipped / count,
            "grad_norm": norm,
            "skipped_updates": float(num_skipped),
            "learning_rate": rate,
        }
