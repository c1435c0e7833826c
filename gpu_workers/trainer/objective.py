"""The objective of one batch: what is computed once before its updates, and who is at fault when it cannot be used."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpu_workers.algorithms.numerics import MAX_LOG_RATIO
from gpu_workers.contracts.runspec import AlgorithmSpec, KlEstimator
from gpu_workers.trainer.batches import TrainBatch
from gpu_workers.trainer.credit import Credit, assign_credit
from gpu_workers.trainer.model_backend import ModelBackend, RowLoss
from gpu_workers.trainer.packing import PackedRow, pack
from gpu_workers.trainer.passes import Floats, FrozenTokens, policy_row_loss, scatter


@dataclass(frozen=True)
class Objective:
    """A batch with its credit and what was frozen before the first update."""

    spec: AlgorithmSpec
    batch: TrainBatch
    credit: Credit
    frozen: FrozenTokens

    def row_loss(self, rows: Sequence[PackedRow]) -> RowLoss:
        """Losses of rows that hold this batch's episodes, however they are packed."""
        return policy_row_loss(rows, self.batch, self.credit, self.frozen, self.spec)


def prepare(
    backend: ModelBackend, rows: Sequence[PackedRow], batch: TrainBatch, spec: AlgorithmSpec, temperature: float
) -> Objective:
    """Ask the policy before the step, and the reference, only for what the algorithm needs; then assign credit."""
    frozen, penalty_S = FrozenTokens(), None
    needs_reference = spec.kl_coefficient > 0.0
    kl_in_reward = needs_reference and spec.kl_estimator is KlEstimator.K1
    # With a single update π_old is π itself: one forward pass serves both.
    if spec.num_updates_per_batch > 1 or spec.needs_values or kl_in_reward:
        before = backend.evaluate(rows, temperature)
        frozen = FrozenTokens(
            old_S=scatter(rows, batch, [output.logprob_U for output in before]),
            value_S=scatter(rows, batch, [output.value_U for output in before]),
        )
    if needs_reference:
        reference = [output.logprob_U for output in backend.evaluate(rows, temperature, reference=True)]
        frozen = replace(frozen, reference_S=scatter(rows, batch, reference))
    if kl_in_reward:
        assert frozen.old_S is not None and frozen.reference_S is not None
        distance_S = _finite(frozen.old_S) - _finite(frozen.reference_S)
        penalty_S = spec.kl_coefficient * distance_S.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    value_S = None if frozen.value_S is None else _finite(frozen.value_S)
    return Objective(spec, batch, assign_credit(spec, batch, penalty_S=penalty_S, value_S=value_S), frozen)


def _finite(values_S: Floats) -> Floats:
    """Zeros for a broken model's NaN and infinities: the loss refuses them and names the episode, but in credit, which
    is whitened over the batch, they would spoil every other episode first."""
    return np.nan_to_num(values_S, posinf=0.0, neginf=0.0)


def name_episode(batch: TrainBatch, episode: int, what: str) -> None:
    """Put the group of a sequence that cannot be used among the skipped, with the episode's place in it."""
    member = batch.members[episode]
    batch.skipped[member.group_id] = f"rejected: {what} of episode {member.index} is NaN or infinite"


def blame_gradient(backend: ModelBackend, objective: Objective, temperature: float) -> None:
    """Find the episodes whose own gradient is NaN or infinite, one pass each; collective."""
    for episode, sequence in enumerate(objective.batch.sequences):
        (row,) = pack([sequence], max_row_tokens=len(sequence.tokens))
        alone = [replace(row, sequence_T=row.sequence_T + episode)]
        backend.accumulate(alone, temperature, objective.row_loss(alone))
        if not backend.gradients_finite():
            name_episode(objective.batch, episode, "gradient")
        backend.discard()
