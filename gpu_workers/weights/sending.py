"""The process that is rank 0 of a broadcast: `python -m gpu_workers.weights.sending`, one JSON order a line.

A process of its own, because a collective that hangs cannot be given up: it is killed, and with it its connections.
Orders: serve (a store where the ranks meet), form (the group), send (one bucket of a file), leave. Each is answered
with one line: {"ok": true, …} or {"ok": false, "error": …}.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from gpu_workers.engines import update_group
from gpu_workers.engines.update_group import GroupError, UpdateGroup
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.buckets import open_file
from gpu_workers.weights.ordered import serve_orders


class Rank0:
    """State of the sender between two orders: the store, the group, and one buffer a bucket."""

    def __init__(self) -> None:
        self._store: dist.TCPStore | None = None
        self._group: UpdateGroup | None = None
        self._device = torch.device("cpu")
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._timeout = 0.0

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Raises GroupError or InstallError."""
        if order["do"] == "serve":
            return self.serve(order["address"], float(order["seconds"]))
        if order["do"] == "form":
            return self.form(order["name"], int(order["world_size"]), order["backend"])
        if order["do"] == "send":
            return self.send(Path(order["file"]), order["names"])
        return self.leave()

    def serve(self, address: str, seconds: float) -> dict[str, Any]:
        self.leave()
        self._timeout = seconds
        _use_interface_of(address)
        self._store = update_group.serve_store(address, timeout_seconds=seconds)
        return {"port": self._store.port}

    def form(self, name: str, world_size: int, backend: str) -> dict[str, Any]:
        """Blocks until every rank has come."""
        if self._store is None:
            raise GroupError("there is no store to meet at: serve comes first")
        if backend == "nccl" and not torch.cuda.is_available():
            raise GroupError(
                "the engines are on GPUs and this host, whose fleet worker sends, has none: run the fleet worker on a "
                "host with a GPU, or use transfer full"
            )
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self._group = update_group.form(
            self._store, rank=0, world_size=world_size, name=name, backend=backend, timeout_seconds=self._timeout
        )
        return {}

    def send(self, file: Path, names: list[str]) -> dict[str, Any]:
        """These tensors of the file, one after the other, to every rank."""
        if self._group is None:
            raise GroupError("there is no group to send to: form comes first")
        weights = open_file(file)
        tensors = [weights.tensor(name) for name in names]
        num_bytes = sum(len(tensor) for tensor in tensors)
        if self._buffer.numel() < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        flat, at = self._buffer[:num_bytes], 0
        for tensor in tensors:
            flat.numpy()[at : at + len(tensor)] = tensor
            at += len(tensor)
        self._group.broadcast(flat.to(self._device))
        return {"num_bytes": num_bytes}

    def leave(self) -> dict[str, Any]:
        if self._group is not None:
            self._group.leave()
        self._group = self._store = None
        return {}


def _use_interface_of(address: str) -> None:
    """gloo and NCCL choose an interface by themselves, often another: bind them to the one with this address."""
    try:
        wanted = {info[4][0] for info in socket.getaddrinfo(address, None)}
    except OSError as error:
        raise GroupError(f"{address} is no address: {error}") from error
    for interface, addresses in psutil.net_if_addrs().items():
        if any(entry.address in wanted for entry in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
            return
    raise GroupError(
        f"{address} is no address of this host: set WEIGHTS_COLLECTIVE_ADDRESS to one that the engines reach"
    )


def main() -> int:
    """Serve orders until the pipe is closed."""
    rank0 = Rank0()
    serve_orders(rank0.do, GroupError, InstallError, OSError, RuntimeError)
    rank0.leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
