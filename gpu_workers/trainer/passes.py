"""Forward and backward over the rows of a batch: gradients accumulate on the adapter, sums come back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gpu_workers.algorithms.corrections import MismatchSums
from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.algorithms.policy_loss import PolicyLossInputs, policy_loss
from gpu_workers.algorithms.supervised_loss import SupervisedLossInputs, supervised_loss
from gpu_workers.contracts.runspec import AlgorithmSpec
from gpu_workers.trainer.batches import RowTargets
from gpu_workers.trainer.llama import PackedLlama
from gpu_workers.trainer.packing import PackedRow
from gpu_workers.trainer.world import World


@dataclass(frozen=True)
class PassSums:
    """Sums over loss tokens; additive over rows, ranks and updates. `refused`: (episode, reason) of non-finite ones."""

    loss: float = 0.0
    num_tokens: int = 0
    entropy: float = 0.0
    probability: float = 0.0
    num_clipped: int = 0
    mismatch: MismatchSums = field(default_factory=MismatchSums)
    refused: tuple[tuple[int, str], ...] = ()

    def __add__(self, other: "PassSums") -> "PassSums":
        return PassSums(
            loss=self.loss + other.loss,
            num_tokens=self.num_tokens + other.num_tokens,
            entropy=self.entropy + other.entropy,
            probability=self.probability + other.probability,
            num_clipped=self.num_clipped + other.num_clipped,
            mismatch=self.mismatch + other.mismatch,
            refused=self.refused + other.refused,
        )


# From the row's index and its log-probs and entropies [U] to the loss and the sums.
RowLoss = Callable[[int, Tensor, Tensor], tuple[Tensor, PassSums]]


def accumulate(
    model: PackedLlama, rows: Sequence[PackedRow], temperature: float, row_loss: RowLoss, world: World
) -> PassSums:
    """Run this rank's rows and add up all ranks' sums. A refused row contributes no loss; see `refused`."""
    total = PassSums()
    for index in world.share(rows):
        logprob_U, entropy_U = model(rows[index or 0], temperature)
        loss, sums = logprob_U.sum() * 0.0, PassSums()
        if index is not None:
            try:
                loss, sums = row_loss(index, logprob_U, entropy_U)
            except NonFiniteError as error:
                sums = PassSums(refused=((error.episode, str(error)),))
        if loss.requires_grad:
            # FSDP averages over the ranks; the loss is a sum.
            (loss * world.size).backward()
        total += sums
    return sum(world.gather(total), PassSums())


def frozen_logprobs(
    model: PackedLlama, rows: Sequence[PackedRow], temperature: float, world: World
) -> dict[int, Tensor]:
    """π_old [U] of this rank's rows, by row index."""
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for index in world.share(rows):
            logprob_U, _ = model(rows[index or 0], temperature)
            if index is not None:
                found[index] = logprob_U
    return found


def policy_row_loss(targets: Sequence[RowTargets], spec: AlgorithmSpec, old: dict[int, Tensor]) -> RowLoss:
    """The policy loss of a row. Without `old`, π_old is π of the same pass."""

    def loss_of(index: int, logprob_U: Tensor, entropy_U: Tensor) -> tuple[Tensor, PassSums]:
        target = targets[index]
        current = logprob_U[target.edge_T]
        before = old[index][target.edge_T] if index in old else current.detach()
        result = policy_loss(
            PolicyLossInputs(
                current, before, target.behaviour_T, target.advantage_T, target.weight_T, target.episode_T
            ),
            spec,
        )
        return result.loss, PassSums(
            loss=float(result.loss.detach()),
            num_tokens=len(current),
            entropy=float(entropy_U[target.edge_T].double().sum()),
            probability=float(current.detach().double().exp().sum()),
            num_clipped=result.num_clipped,
            mismatch=result.mismatch,
        )

    return loss_of


def supervised_row_loss(rows: Sequence[PackedRow], weight_E: Tensor) -> RowLoss:
    """The supervised loss of a row."""

    def loss_of(index: int, logprob_U: Tensor, entropy_U: Tensor) -> tuple[Tensor, PassSums]:
        edge_T, episode_T = torch.from_numpy(rows[index].edge_T), torch.from_numpy(rows[index].sequence_T)
        current = logprob_U[edge_T]
        loss = supervised_loss(SupervisedLossInputs(current, weight_E[episode_T], episode_T))
        return loss, PassSums(
            loss=float(loss.detach()),
            num_tokens=len(current),
            entropy=float(entropy_U[edge_T].double().sum()),
            probability=float(current.detach().double().exp().sum()),
        )

    return loss_of
