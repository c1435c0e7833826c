"""The seam below the trainer: what a training framework owes the algorithms. FSDP2 is `fsdp`; see decision 0008.

Algorithms, batches, metrics and checkpoint rules lie above and know neither shards nor devices; below lie forward,
backward, optimiser and files. Every method is collective: all ranks call it with the same arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from gpu_workers.algorithms.policy_loss import PolicySums
from gpu_workers.algorithms.sums import Sums
from gpu_workers.algorithms.value_loss import ValueSums
from gpu_workers.trainer.packing import PackedRow


class RowOutput(NamedTuple):
    """Of a row's U distinct loss edges, float32, temperature applied. `value_U` is V of the state before the token."""

    logprob_U: Tensor
    entropy_U: Tensor
    value_U: Tensor | None = None


@dataclass(frozen=True)
class PassSums(Sums):
    """Sums over loss tokens; additive over rows, ranks and updates. `refused`: (episode, reason) of non-finite ones."""

    loss: float = 0.0
    num_tokens: int = 0
    entropy: float = 0.0
    probability: float = 0.0
    policy: PolicySums = field(default_factory=PolicySums)
    value: ValueSums = field(default_factory=ValueSums)
    refused: tuple[tuple[int, str], ...] = ()


# From the row's index and its output to the loss and the sums. Tensors of the output's device.
RowLoss = Callable[[int, RowOutput], tuple[Tensor, PassSums]]


class ModelBackend(Protocol):
    """A policy under training. A row holds whole episodes; how rows are dealt to ranks is the backend's own affair."""

    @property
    def context_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def evaluate(self, rows: Sequence[PackedRow], temperature: float, *, reference: bool = False) -> list[RowOutput]:
        """Outputs of every row on every rank, on the CPU, without gradient. `reference`: of the policy at the start."""
        ...

    def accumulate(self, rows: Sequence[PackedRow], temperature: float, row_loss: RowLoss) -> PassSums:
        """Forward and backward of all rows; all ranks' sums. A row whose loss raises NonFiniteError is in `refused`."""
        ...

    def apply(self, rate: float) -> tuple[float, bool]:
        """Gradient norm before clipping, and whether the update was made: on NaN or infinity nothing changes."""
        ...

    def discard(self) -> None:
        """Drop the gradients gathered so far."""
        ...

    def gradients_finite(self) -> bool:
        """On all ranks."""
        ...

    def start_from(self, adapter: Path, sha256: str) -> None:
        """Take a parent's adapter; before the first step and before `load_state`."""
        ...

    def save_state(self, folder: Path) -> None:
        """Master weights and optimiser, each rank its shards. Ranks may be given folders of their own."""
        ...

    def load_state(self, folder: Path, num_updates: int) -> None:
        """Whatever the number of ranks that saved it. Raises CheckpointError, and nothing changes then."""
        ...

    def export(self, folder: Path, base_name: str) -> str:
        """Write what engines load, rank 0 alone; SHA-256 of its weights there."""
        ...
