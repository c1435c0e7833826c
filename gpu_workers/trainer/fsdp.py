"""The FSDP2 backend: the packed Llama on one process, or sharded over ranks by `fully_shard`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from gpu_workers.algorithms.numerics import NonFiniteError
from gpu_workers.contracts import checkpoints as layout
from gpu_workers.contracts.runspec import Algorithm, RunSpec, Update
from gpu_workers.trainer import checkpoints, export, model, sharded
from gpu_workers.trainer.llama import PackedLlama, TrainedParts
from gpu_workers.trainer.model_backend import PassSums, RowLoss, RowOutput
from gpu_workers.trainer.optimisation import Optimiser
from gpu_workers.trainer.packing import PackedRow
from gpu_workers.trainer.world import World, shard

_MASTER = "master."


class FsdpBackend:
    """ModelBackend. Frozen weights in the dtype that is computed with, trained ones in float32.

    The reference policy of a KL term is what stands here before the first step or `load_state`: a copy of the trained
    parameters, put in their place while it is asked.
    """

    def __init__(self, spec: RunSpec, folder: Path, world: World, *, dtype: torch.dtype | None = None) -> None:
        self.world, self._folder = world, folder
        self._keeps_reference = spec.algorithm.kind is not Algorithm.SFT and spec.algorithm.kl_coefficient > 0.0
        self._reference: dict[str, Tensor] = {}
        parts = TrainedParts(
            lora=spec.lora if spec.trainer.update is Update.LORA else None,
            dtype=dtype or model.compute_dtype(folder, spec.trainer.compute_dtype),
            value_head=spec.algorithm.needs_values,
            entropy_gradient=spec.algorithm.kind is not Algorithm.SFT and spec.algorithm.entropy_coefficient > 0.0,
            recompute_layers=spec.trainer.activation_checkpointing,
        )
        self.model: PackedLlama = model.load_model(folder, parts, seed=spec.seed).to(world.device)
        # Under LoRA what is frozen already has its dtype, and what is trained is needed in float32.
        gathered = parts.dtype if parts.lora is None and parts.dtype != torch.float32 else None
        if self.model.value_head is not None:
            shard(self.model.value_head, [], world, compute_dtype=None)
        shard(self.model, list(self.model.decoder_layers()), world, compute_dtype=gathered)
        self.parameters = model.trained_parameters(self.model)
        self.optimiser = Optimiser(self.parameters, spec.optimiser)

    @property
    def context_length(self) -> int:
        return self.model.shape.context_length

    @property
    def vocab_size(self) -> int:
        return self.model.shape.vocab_size

    def evaluate(self, rows: Sequence[PackedRow], temperature: float, *, reference: bool = False) -> list[RowOutput]:
        """Outputs of all rows, without gradient, on the CPU of every rank."""
        found: dict[int, RowOutput] = {}
        with torch.no_grad(), self._as_reference() if reference else nullcontext():
            for index in self.world.share(rows):
                output = self.model(rows[index or 0], temperature)
                if index is not None:
                    value_U = None if output.value_U is None else output.value_U.cpu()
                    found[index] = RowOutput(output.logprob_U.cpu(), output.entropy_U.cpu(), value_U)
        everywhere: dict[int, RowOutput] = {}
        for part in self.world.gather(found):
            everywhere |= part
        return [everywhere[index] for index in range(len(rows))]

    def accumulate(self, rows: Sequence[PackedRow], temperature: float, row_loss: RowLoss) -> PassSums:
        """Run this rank's rows and add up all ranks' sums. A refused row contributes no loss; see `refused`."""
        self._remember_start()
        total = PassSums()
        for index in self.world.share(rows):
            output = self.model(rows[index or 0], temperature)
            loss, sums = _nothing(output), PassSums()
            if index is not None:
                try:
                    loss, sums = row_loss(index, output)
                except NonFiniteError as error:
                    sums = PassSums(refused=((error.episode, error.name),))
            # FSDP averages over the ranks; the loss is a sum.
            (loss * self.world.size).backward()
            total += sums
        return sum(self.world.gather(total), PassSums())

    def apply(self, rate: float) -> tuple[float, bool]:
        """Clip and step; on NaN or infinity nothing changes."""
        return self.optimiser.step(rate)

    def discard(self) -> None:
        self.optimiser.clear()

    def gradients_finite(self) -> bool:
        return all(self.world.gather(self.optimiser.gradients_finite()))

    def start_from(self, folder: Path, sha256: str) -> None:
        """Take the parent policy's adapter, or its whole weights. Raises ModelLoadError."""
        if (folder / model.WEIGHTS).is_file():
            model.load_whole(self.model, folder, sha256=sha256)
        else:
            model.load_adapter(self.model, folder, sha256=sha256)

    def save_state(self, folder: Path) -> None:
        """Masters and moments below state/; each rank its shards."""
        masters = {f"{_MASTER}{name}": value.detach() for name, value in self.parameters.items()}
        sharded.save_sharded(folder / layout.STATE, masters | self.optimiser.moments(), self.world)

    def load_state(self, folder: Path, num_updates: int) -> None:
        """Exactly what was saved, or CheckpointError and no change."""
        self._remember_start()
        masters = {f"{_MASTER}{name}": torch.empty_like(value) for name, value in self.parameters.items()}
        moments = self.optimiser.empty_moments() if num_updates else {}
        try:
            sharded.load_sharded(folder / layout.STATE, masters | moments, self.world)
        except sharded.ShardError as error:
            raise checkpoints.CheckpointError(f"{error}: resume from another checkpoint") from error
        self._put({name: masters[f"{_MASTER}{name}"] for name in self.parameters})
        self.optimiser.restore(moments, num_updates)

    def export(self, folder: Path, base_name: str) -> str:
        """adapter/ or model/ of a checkpoint; the SHA-256 of its weights on rank 0."""
        if self.model.parts.lora:
            return export.write_adapter(self.model, folder / layout.ADAPTER, base_name=base_name, world=self.world)
        return export.write_model(self.model, folder / layout.MODEL, base_folder=self._folder, world=self.world)

    def _remember_start(self) -> None:
        if self._keeps_reference and not self._reference:
            self._reference = {name: value.detach().clone() for name, value in self.parameters.items()}

    @contextmanager
    def _as_reference(self) -> Iterator[None]:
        self._remember_start()
        if not self._reference:
            raise ValueError("no reference policy is kept: algorithm.kl_coefficient is 0")
        present = {name: value.detach().clone() for name, value in self.parameters.items()}
        try:
            self._put(self._reference)
            yield
        finally:
            self._put(present)

    def _put(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(values[name])


def _nothing(output: RowOutput) -> Tensor:
    """Zero that touches every output: a backward pass of FSDP is collective, also for a rank without work."""
    parts = [value.sum() * 0.0 for value in output if value is not None and value.requires_grad]
    return torch.stack(parts).sum()
