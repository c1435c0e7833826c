"""The LoRA trainer backend: one batch of groups (or supervised examples) in, one policy version and its metrics out."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from gpu_workers.algorithms.corrections import MismatchSums
from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.algorithms.policy_loss import PolicyLossInputs, policy_loss
from gpu_workers.contracts.runspec import RunSpec, spec_hash
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.batches import RowTargets, TrainBatch, assemble, row_targets
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
from gpu_workers.trainer.supervised import SupervisedBatch, supervised_pass

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
    ) -> None:
        self.spec, self.base = spec, base
        self.run_id, self.attempt = run_id, attempt
        self.total_steps = total_steps or spec.steps
        self.max_row_tokens = max_row_tokens
        self.version = 0
        self.batch_ids: list[str] = []
        self.num_updates = 0
        self.num_skipped_updates = 0
        torch.manual_seed(spec.seed)
        self.model: PackedLlama = load_model(base.folder, spec.lora, seed=spec.seed, dtype=dtype)
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
        batch = SupervisedBatch(list(sequences))
        rows = pack(batch.sequences, max_row_tokens=self.max_row_tokens)
        rate = learning_rate(self.spec.optimiser, self.version, self.total_steps)
        metrics = supervised_pass(self.model, rows, batch)
        norm, applied = self._apply(rate)
        self._finish(batch_id)
        seconds = time.perf_counter() - started
        num_tokens = sum(len(s.tokens) for s in sequences)
        metrics |= {
            "grad_norm": norm,
            "learning_rate": rate,
            "skipped_updates": float(not applied),
            "num_tokens": float(num_tokens),
            "num_packed_tokens": float(sum(row.num_nodes for row in rows)),
            "tokens_per_second": num_tokens / max(seconds, 1e-9),
            "step_seconds": seconds,
        }
        return {f"train/{name}": value for name, value in metrics.items()}

    def save(self, folder: Path) -> None:
        """Write the checkpoint of the present version into an empty folder; its manifest last."""
        sha256, _ = save_adapter(
            self.model, folder / checkpoints.ADAPTER, lora=self.spec.lora, base_name=self.base.name
        )
        manifest = checkpoints.AdapterManifest(
            name=self.adapter_name, version=self.version, sha256=sha256, base_fingerprint=self.base.fingerprint
        )
        (folder / checkpoints.ADAPTER / checkpoints.MANIFEST).write_bytes(msgspec.json.encode(manifest))
        tensors: dict[str, Tensor] = {f"master.{name}": value for name, value in self.parameters.items()}
        state = checkpoints.TrainerState(
            version=self.version,
            batch_ids=self.batch_ids,
            num_updates=self.num_updates,
            num_skipped_updates=self.num_skipped_updates,
            random_states=checkpoints.capture_random_states(),
        )
        checkpoints.write_state(folder, tensors | self.optimiser.tensors(), state)
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

    def _apply(self, rate: float) -> tuple[float, bool]:
        norm, applied = self.optimiser.step(rate)
        self.num_updates += applied
        self.num_skipped_updates += not applied
        return norm, applied

    def _updates(self, rows: Sequence[PackedRow], batch: TrainBatch) -> dict[str, float]:
        rate = learning_rate(self.spec.optimiser, self.version, self.total_steps)
        if not rows:
            return {"learning_rate": rate, "skipped_updates": 1.0}
        num_updates = self.spec.algorithm.num_updates_per_batch
        targets = [row_targets(row, batch) for row in rows]
        # With a single update π_old is π itself: one forward pass serves both.
        old = self._old_logprobs(rows) if num_updates > 1 else [None] * len(rows)
        totals = _UpdateTotals()
        for _ in range(num_updates):
            try:
                for row, target, old_U in zip(rows, targets, old, strict=True):
                    totals.add(*self._row_loss(row, target, old_U))
            except NonFiniteError as error:
                self.optimiser.clear()
                self.num_skipped_updates += 1
                totals.num_skipped += 1
                group = batch.group_ids[error.episode]
                batch.skipped[group] = f"rejected: {error}"
                continue
            norm, applied = self._apply(rate)
            totals.grad_norm = norm
            totals.num_skipped += not applied
        return totals.metrics() | {"learning_rate": rate}

    def _old_logprobs(self, rows: Sequence[PackedRow]) -> list[Tensor | None]:
        with torch.no_grad():
            return [self.model(row, self.spec.rollout.temperature)[0] for row in rows]

    def _row_loss(
        self, row: PackedRow, target: RowTargets, old_U: Tensor | None
    ) -> tuple[float, int, float, MismatchSums]:
        logprob_U, entropy_U = self.model(row, self.spec.rollout.temperature)
        current = logprob_U[target.edge_T]
        old = current.detach() if old_U is None else old_U[target.edge_T]
        result = policy_loss(
            PolicyLossInputs(current, old, target.behaviour_T, target.advantage_T, target.weight_T, target.episode_T),
            self.spec.algorithm,
        )
        if result.loss.requires_grad:
            result.loss.backward()
        entropy = float(entropy_U[target.edge_T].double().sum())
        return float(result.loss.detach()), result.num_clipped, entropy, result.mismatch


class _UpdateTotals:
    """Sums over the rows and updates of one batch."""

    def __init__(self) -> None:
        self.loss = self.entropy = self.grad_norm = 0.0
        self.num_clipped = self.num_skipped = 0
        self.mismatch = MismatchSums()

    def add(self, loss: float, num_clipped: int, entropy: float, mismatch: MismatchSums) -> None:
        self.loss += loss
        self.num_clipped += num_clipped
        self.entropy += entropy
        self.mismatch += mismatch

    def metrics(self) -> dict[str, float]:
        count = max(self.mismatch.num_tokens, 1)
        return self.mismatch.metrics() | {
            "loss": self.loss,
            "entropy": self.entropy / count,
            "clip_fraction": self.num_clipped / count,
            "grad_norm": self.grad_norm,
            "skipped_updates": float(self.num_skipped),
        }
