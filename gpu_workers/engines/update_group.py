"""The process group over which weights are broadcast: rank 0 sends, every engine is a further rank.

SGLang forms it beside its own default group, which no public call of torch does. It and every trainer that sends to it
use the helper named here, so that all ranks agree on the keys in the store and on one backend a device.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName, _new_process_group_helper, _world


class GroupError(RuntimeError):
    """A group that could not be formed or used; the message says what failed."""


@dataclass(frozen=True)
class UpdateGroup:
    """A member of the group `name`."""

    name: str
    process_group: dist.ProcessGroup
    store: dist.Store  # kept open for as long as the group

    def broadcast(self, tensor: torch.Tensor) -> None:
        """From rank 0 to all, in place. Blocks; raises GroupError when a peer is gone or the time is up."""
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        try:
            self.process_group.broadcast([tensor], options).wait()
            if tensor.is_cuda:
                torch.cuda.synchronize(tensor.device)
        except RuntimeError as error:
            raise GroupError(f"broadcast over group {self.name} failed: {_first_line(error)}") from error

    def leave(self) -> None:
        """Close the connections; peers that wait for this rank are told. Never raises."""
        try:
            dist.destroy_process_group(self.process_group)
        except (RuntimeError, ValueError):
            _world.pg_map.pop(self.process_group, None)


def serve_store(address: str, *, timeout_seconds: float) -> dist.TCPStore:
    """Where the ranks of a group meet: it listens on this address only, on a port of its own. Raises GroupError.

    Whoever reaches it can join: it knows no credentials.
    """
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise GroupError(f"cannot listen on {address}: {error.strerror}; it must be an address of this host") from error
    port = listener.getsockname()[1]
    return dist.TCPStore(
        address,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def join(
    *, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout_seconds: float
) -> UpdateGroup:
    """Meet the other ranks at rank 0's store. Blocks until all are there; raises GroupError.

    `timeout_seconds` bounds the meeting and each later broadcast.
    """
    try:
        store = dist.TCPStore(
            address, port, is_master=False, timeout=timedelta(seconds=timeout_seconds), wait_for_workers=False
        )
    except RuntimeError as error:
        raise GroupError(f"nobody answers at {address}:{port}: {_first_line(error)}") from error
    return form(store, rank=rank, world_size=world_size, name=name, backend=backend, timeout_seconds=timeout_seconds)


def form(
    store: dist.Store, *, rank: int, world_size: int, name: str, backend: str, timeout_seconds: float
) -> UpdateGroup:
    """The same, with the store at hand: rank 0's way."""
    if not 0 <= rank < world_size:
        raise GroupError(f"rank {rank} is outside a group of {world_size}")
    if backend.lower() not in dist.Backend.backend_list:
        raise GroupError(f"backend {backend!r} is unknown; use gloo between CPUs, nccl between GPUs")
    timeout = timedelta(seconds=timeout_seconds)
    try:
        group, _ = _new_process_group_helper(
            world_size,
            rank,
            [],
            dist.Backend(backend),
            dist.PrefixStore(name, store),
            group_name=GroupName(name),
            timeout=timeout,
        )
        _world.pg_group_ranks[group] = {member: member for member in range(world_size)}
    except (RuntimeError, ValueError, AssertionError, AttributeError) as error:
        raise GroupError(f"group {name} ({backend}) could not be formed: {_first_line(error)}") from error
    return UpdateGroup(name, group, store)


def views(flat: torch.Tensor, dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The tensors that lie one after the other in `flat`, uint8 [N]. Raises GroupError when they do not fill it."""
    found, start = list[torch.Tensor](), 0
    for name, shape in zip(dtypes, shapes, strict=True):
        dtype = dtype_of(name)
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        if start % dtype.itemsize:
            raise GroupError(f"a {name} tensor begins at byte {start}, which is no multiple of its size")
        found.append(flat[start : start + num_bytes].view(dtype).reshape(tuple(shape)))
        start += num_bytes
    if start != flat.numel():
        raise GroupError(f"the tensors take {start} bytes of {flat.numel()}")
    return found


def num_bytes_of(dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> int:
    """Of all these tensors. Raises GroupError for an unknown dtype or a negative length."""
    if any(length < 0 for shape in shapes for length in shape):
        raise GroupError("a tensor has a negative length")
    return sum(torch.Size(s).numel() * dtype_of(name).itemsize for name, s in zip(dtypes, shapes, strict=True))


def dtype_of(name: str) -> torch.dtype:
    """`bfloat16` and the like. Raises GroupError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise GroupError(f"{name!r} is no dtype")
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
