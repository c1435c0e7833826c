"""Losses of one packed row: from log-probs, entropies and values to a loss and its sums."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.algorithms.policy_loss import PolicyLossInputs, policy_loss
from gpu_workers.algorithms.supervised_loss import SupervisedLossInputs, supervised_loss
from gpu_workers.algorithms.value_loss import ValueLossInputs, ValueSums, value_loss
from gpu_workers.contracts.runspec import AlgorithmSpec
from gpu_workers.trainer.batches import TrainBatch
from gpu_workers.trainer.credit import Credit
from gpu_workers.trainer.model_backend import PassSums, RowLoss, RowOutput
from gpu_workers.trainer.packing import PackedRow

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FrozenTokens:
    """What was computed before the step, for all S sampled tokens; None where the algorithm does not need it."""

    old_S: Floats | None = None  # None: π_old is π of the same pass
    value_S: Floats | None = None
    reference_S: Floats | None = None


def scatter(rows: Sequence[PackedRow], batch: TrainBatch, edges: Sequence[Tensor | None]) -> Floats | None:
    """Values of the rows' edges [U] as one array over the batch's sampled tokens."""
    found = np.zeros(batch.num_sampled_tokens)
    for row, edge_U in zip(rows, edges, strict=True):
        if edge_U is None:
            return None
        found[batch.positions(row)] = edge_U.double().numpy()[row.edge_T]
    return found


def policy_row_loss(
    rows: Sequence[PackedRow], batch: TrainBatch, credit: Credit, frozen: FrozenTokens, spec: AlgorithmSpec
) -> RowLoss:
    """The policy loss of a row and, with a value function, its value loss."""
    episode_S = batch.episode_S

    def loss_of(index: int, output: RowOutput) -> tuple[Tensor, PassSums]:
        row, places = rows[index], batch.positions(rows[index])
        device = output.logprob_U.device

        def take(values_S: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values_S[places]).to(device)

        edge_T = torch.from_numpy(row.edge_T).to(device)
        current_T, entropy_T = output.logprob_U[edge_T], output.entropy_U[edge_T]
        weight_T, episode_T = take(batch.weight_S), take(episode_S)
        loss, sums = policy_loss(
            PolicyLossInputs(
                current_T=current_T,
                old_T=current_T.detach() if frozen.old_S is None else take(frozen.old_S),
                behaviour_T=take(batch.behaviour_S),
                advantage_T=take(credit.advantage_S),
                weight_T=weight_T,
                episode_T=episode_T,
                reference_T=None if frozen.reference_S is None else take(frozen.reference_S),
                entropy_T=entropy_T if spec.entropy_coefficient > 0.0 else None,
            ),
            spec,
        )
        value_sums = ValueSums()
        if output.value_U is not None and credit.return_S is not None and frozen.value_S is not None:
            inputs = ValueLossInputs(
                output.value_U[edge_T], take(frozen.value_S), take(credit.return_S), weight_T, episode_T
            )
            fit, value_sums = value_loss(inputs, clip=spec.value_clip)
            loss = loss + spec.value_coefficient * fit
        return loss, PassSums(
            loss=float(loss.detach()),
            num_tokens=len(current_T),
            entropy=float(entropy_T.detach().double().sum()),
            probability=float(current_T.detach().double().exp().sum()),
            policy=sums,
            value=value_sums,
        )

    return loss_of


def supervised_row_loss(rows: Sequence[PackedRow], weight_E: Floats) -> RowLoss:
    """The supervised loss of a row."""

    def loss_of(index: int, output: RowOutput) -> tuple[Tensor, PassSums]:
        row, device = rows[index], output.logprob_U.device
        edge_T, episode_T = torch.from_numpy(row.edge_T).to(device), torch.from_numpy(row.sequence_T).to(device)
        current_T = output.logprob_U[edge_T]
        weight_T = torch.from_numpy(weight_E[row.sequence_T]).to(device)
        loss = supervised_loss(SupervisedLossInputs(current_T, weight_T, episode_T))
        return loss, PassSums(
            loss=float(loss.detach()),
            num_tokens=len(current_T),
            entropy=float(output.entropy_U[edge_T].detach().double().sum()),
            probability=float(current_T.detach().double().exp().sum()),
        )

    return loss_of
