"""The ranks of a trainer: one process alone, or several under torchrun with the model sharded by FSDP2."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gpu_workers.trainer.packing import PackedRow

T = TypeVar("T")
# Rank 0 waits for batches while the others wait for rank 0: as long as a run may take.
PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class World:
    """Rank, size and this rank's device. With size 1 nothing here communicates."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

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
    """The world torchrun describes in the environment; a process without it is alone. A GPU is used where there is one.

    Tensors on GPUs travel by NCCL, everything else by gloo.
    """
    size = int(os.environ.get("WORLD_SIZE") or 1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK") or 0))
        torch.cuda.set_device(device)
    if size == 1:
        return World(device=device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size(), device)


def leave_world(world: World) -> None:
    """End the communication of the ranks."""
    if world.size > 1:
        dist.destroy_process_group()


def end_rank(world: World, code: int) -> None:
    """Exit a rank's process at once with this code. In the interpreter's own end a thread of gloo that still wants
    Python's lock aborts the process now and then, and torchrun takes that for a failure of what was finished."""
    if world.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def shard(model: nn.Module, layers: Sequence[nn.Module], world: World, *, compute_dtype: torch.dtype | None) -> None:
    """FSDP2: shard each of `layers`, then the rest. Optimisers must be made after this.

    With `compute_dtype` the parameters are gathered in it, and gradients are still reduced in float32.
    """
    if world.size == 1:
        return
    mesh = init_device_mesh(world.device.type, (world.size,))
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    # By default the root stays gathered after a pass without a backward, and a change of its weights would go unseen.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)


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
