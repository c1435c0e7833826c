"""The ranks of a trainer: one process alone, or several under torchrun with the model sharded by FSDP2."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gpu_workers.trainer.llama import PackedLlama
from gpu_workers.trainer.packing import PackedRow

T = TypeVar("T")
# Rank 0 waits for batches while the others wait for rank 0: as long as a run may take.
PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class World:
    """Rank and size. With size 1 nothing here communicates."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Rank 0 alone reads the queue, reports and writes."""
        return self.rank == 0

    def broadcast(self, value: T | None) -> T:
        """Rank 0's value, on every rank."""
        holder: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(holder, src=0)
        result: T = holder[0]
        return result

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in order of rank, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def share(self, rows: Sequence[PackedRow]) -> list[int | None]:
        """Indices of this rank's rows, the largest dealt first. Every rank gets equally many, because each forward
        pass is collective; None stands for a pass that only keeps the others company."""
        largest_first = sorted(range(len(rows)), key=lambda i: (-rows[i].num_nodes, i))
        order: list[int | None] = [*largest_first, *[None] * (-len(rows) % self.size)]
        return order[self.rank :: self.size]


ALONE = World()


def join_world() -> World:
    """The world torchrun describes in the environment; a process without it is alone."""
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1:
        return ALONE
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size())


def leave_world(world: World) -> None:
    """End the communication of the ranks."""
    if world.size > 1:
        dist.destroy_process_group()


def shard(model: PackedLlama, world: World) -> None:
    """Shard every decoder layer, then the rest. Optimisers must be made after this."""
    if world.size == 1:
        return
    for layer in model.decoder_layers():
        fully_shard(layer)
    fully_shard(model)


def whole(parameter: Tensor) -> Tensor:
    """The whole of a possibly sharded tensor; collective when it is sharded."""
    value = parameter.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value


def assign(parameter: nn.Parameter, value: Tensor) -> None:
    """Copy a whole tensor into a possibly sharded parameter."""
    parameter.detach().copy_(like(parameter, value))


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """`value` laid out over the ranks as `parameter` is."""
    if not isinstance(parameter, DTensor) or value.dim() == 0:
        return value
    return distribute_tensor(value.to(parameter.dtype), parameter.device_mesh, parameter.placements)
