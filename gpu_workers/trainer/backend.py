"""The trainer backend: one batch of groups (or supervised examples) in, one policy version and its metrics out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from gpu_workers.algorithms.aggregation import episode_token_weights
from gpu_workers.contracts import checkpoints as layout
from gpu_workers.contracts.runspec import Aggregation, RunSpec, Update, drops_zero_variance, spec_hash
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.batches import TrainBatch, assemble
from gpu_workers.trainer.fsdp import FsdpBackend
from gpu_workers.trainer.model import WEIGHTS
from gpu_workers.trainer.model_backend import ModelBackend, PassSums
from gpu_workers.trainer.objective import blame_gradient, name_episode, prepare
from gpu_workers.trainer.optimisation import learning_rate
from gpu_workers.trainer.packing import PackedRow, TokenSequence, pack
from gpu_workers.trainer.passes import supervised_row_loss
from gpu_workers.trainer.world import ALONE, World


@dataclass(frozen=True)
class BaseModel:
    """Where the base model lies and what identifies its bytes."""

    name: str
    folder: Path
    fingerprint: str


class PolicyTrainer:
    """TrainerBackend: the algorithms over a ModelBackend. `version` counts finished batches.

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
        max_row_tokens: int = 0,
        dtype: torch.dtype | None = None,
        world: World = ALONE,
        stored_hash: str = "",
    ) -> None:
        self.spec, self.base, self.world = spec, base, world
        self.run_id, self.attempt = run_id, attempt
        self.total_steps = total_steps or spec.steps
        self.spec_hash = stored_hash or spec_hash(spec)
        self.max_row_tokens = max_row_tokens or spec.trainer.max_row_tokens
        self.version = 0
        self.batch_ids: list[str] = []
        self.group_ids: list[list[str]] = []  # of each batch
        self.num_updates = 0
        self.num_skipped_updates = 0
        torch.manual_seed(spec.seed)
        self.policy: ModelBackend = FsdpBackend(spec, base.folder, world, dtype=dtype)

    @property
    def adapter_name(self) -> str:
        return layout.version_name(self.run_id, self.attempt, self.version)

    @property
    def weights_file(self) -> str:
        """What engines load, relative to a checkpoint: the adapter's file, or the whole model's."""
        if self.spec.trainer.update is Update.LORA:
            return f"{layout.ADAPTER}/{layout.ADAPTER_WEIGHTS}"
        return f"{layout.MODEL}/{WEIGHTS}"

    @property
    def context_length(self) -> int:
        return self.policy.context_length

    def start_from(self, adapter_folder: Path, sha256: str = "") -> None:
        """Take the parent policy's adapter as version 0; also what a KL term refers to, so before `load` too."""
        self.policy.start_from(adapter_folder, sha256)

    def step(self, batch_id: str, groups: Sequence[TrainGroup]) -> tuple[dict[str, float], dict[str, str]]:
        """Train on one batch. Returns metrics and {group_id: reason} of groups that were not trained on."""
        started = time.perf_counter()
        batch = assemble(
            groups,
            self.spec.algorithm,
            max_tokens=self.spec.rollout.max_new_tokens,
            context_length=self.context_length,
            vocab_size=self.policy.vocab_size,
            drop_zero_variance=drops_zero_variance(self.spec),
        )
        rows = pack(batch.sequences, max_row_tokens=self.max_row_tokens)
        metrics = batch.statistics.metrics()
        metrics |= self._updates(rows, batch)
        self._finish(batch_id, [group.group_id for group in groups])
        metrics |= _throughput(rows, batch.sequences, batch.num_sampled_tokens, started)
        return {f"train/{name}": value for name, value in metrics.items()}, batch.skipped

    def step_supervised(self, batch_id: str, sequences: Sequence[TokenSequence]) -> dict[str, float]:
        """Train on one batch of supervised examples."""
        started = time.perf_counter()
        rows = pack(sequences, max_row_tokens=self.max_row_tokens)
        weight_E = episode_token_weights(Aggregation.TOKEN_MEAN, [int(s.mask.sum()) for s in sequences])
        rate = learning_rate(self.spec.optimiser, self.version, self.total_steps)
        sums = self.policy.accumulate(rows, 1.0, supervised_row_loss(rows, weight_E))
        norm, applied = self._apply(rate, sums)
        self._finish(batch_id, [])
        count = max(sums.num_tokens, 1)
        metrics = {
            "loss": sums.loss,
            "entropy": sums.entropy / count,
            "target_probability": sums.probability / count,
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped_updates": float(not applied),
            "num_tokens": float(sum(len(s.tokens) for s in sequences)),
        } | _throughput(rows, sequences, sums.num_tokens, started)
        return {f"train/{name}": value for name, value in metrics.items()}

    def save(self, folder: Path) -> None:
        """Write the checkpoint of the present version into an empty folder, its manifest last.

        Collective: each rank writes its shards, into the same folder or one of its own; rank 0 everything else.
        """
        self.policy.save_state(folder)
        sha256 = self.policy.export(folder, self.base.name)
        if self.world.is_main:
            manifest = checkpoints.WeightsManifest(
                name=self.adapter_name, version=self.version, sha256=sha256, base_fingerprint=self.base.fingerprint
            )
            (folder / self.weights_file).with_name(layout.MANIFEST).write_bytes(msgspec.json.encode(manifest))
            state = checkpoints.TrainerState(
                version=self.version,
                batch_ids=self.batch_ids,
                group_ids=self.group_ids,
                num_updates=self.num_updates,
                num_skipped_updates=self.num_skipped_updates,
                random_states=checkpoints.capture_random_states(),
            )
            checkpoints.write_trainer(folder, state)
        checkpoints.seal(folder, self._identity(), self.world)

    def load(self, folder: Path) -> None:
        """Resume exactly. Raises CheckpointError for a torn, damaged or foreign checkpoint; nothing changes then."""
        checkpoints.check_folder(folder, spec_hash=self.spec_hash, base_fingerprint=self.base.fingerprint)
        state = checkpoints.read_trainer(folder)
        self.policy.load_state(folder, state.num_updates)
        self.version, self.batch_ids = state.version, list(state.batch_ids)
        self.group_ids = list(state.group_ids) or [[] for _ in state.batch_ids]
        self.num_updates, self.num_skipped_updates = state.num_updates, state.num_skipped_updates
        checkpoints.restore_random_states(state.random_states)

    def _identity(self) -> layout.Identity:
        return layout.Identity(
            run_id=self.run_id,
            attempt=self.attempt,
            version=self.version,
            spec_hash=self.spec_hash,
            base_fingerprint=self.base.fingerprint,
        )

    def _finish(self, batch_id: str, group_ids: list[str]) -> None:
        self.version += 1
        self.batch_ids.append(batch_id)
        self.group_ids.append(group_ids)

    def _apply(self, rate: float, sums: PassSums) -> tuple[float, bool]:
        """Step the optimiser unless something was refused; returns the gradient norm and whether it was applied."""
        norm, applied = 0.0, False
        if sums.refused:
            self.policy.discard()
        else:
            norm, applied = self.policy.apply(rate)
        self.num_updates += applied
        self.num_skipped_updates += not applied
        return norm, applied

    def _updates(self, rows: Sequence[PackedRow], batch: TrainBatch) -> dict[str, float]:
        rate = learning_rate(self.spec.optimiser, self.version, self.total_steps)
        if not rows:
            return {"learning_rate": rate, "skipped_updates": 1.0}
        algorithm, temperature = self.spec.algorithm, self.spec.rollout.temperature
        objective = prepare(self.policy, rows, batch, algorithm, temperature)
        row_loss = objective.row_loss(rows)
        total, num_skipped, norm = PassSums(), 0, 0.0
        for _ in range(algorithm.num_updates_per_batch):
            sums = self.policy.accumulate(rows, temperature, row_loss)
            for episode, what in sums.refused:
                name_episode(batch, episode, what)
            norm, applied = self._apply(rate, sums)
            if not applied and not sums.refused:
                blame_gradient(self.policy, objective, temperature)
            num_skipped += not applied
            total += sums
        count = max(total.num_tokens, 1)
        metrics = total.policy.metrics() | {
            "loss": total.loss,
            "entropy": total.entropy / count,
            "grad_norm": norm,
            "skipped_updates": float(num_skipped),
            "learning_rate": rate,
        }
        return metrics | (total.value.metrics() if algorithm.needs_values else {})


def _throughput(
    rows: Sequence[PackedRow], sequences: Sequence[TokenSequence], num_sampled: int, started: float
) -> dict[str, float]:
    seconds = time.perf_counter() - started
    return {
        "num_sampled_tokens": float(num_sampled),
        "num_packed_tokens": float(sum(row.num_nodes for row in rows)),
        "tokens_per_second": sum(len(s.tokens) for s in sequences) / max(seconds, 1e-9),
        "step_seconds": seconds,
    }
