"""The fleet worker's handle of the process that sends a broadcast: kept between installs, killed when one fails."""

from pathlib import Path
from typing import Protocol

from gpu_workers.contracts.seams import Bucket
from gpu_workers.weights.ordered import OrderedProcess

START_SECONDS = 120.0  # torch is imported
_CLOSE_SECONDS = 5.0


class Sender(Protocol):
    """Rank 0 of a group. Raises InstallError."""

    async def serve(self, address: str, *, seconds: float) -> int: ...  # the port of the store
    async def form(self, name: str, world_size: int, backend: str, *, seconds: float) -> None: ...
    async def send(self, file: Path, bucket: Bucket, *, seconds: float) -> None: ...
    async def leave(self) -> None: ...
    def kill(self) -> None: ...


class SenderProcess(OrderedProcess):
    """Sender in a process of its own."""

    def __init__(self) -> None:
        super().__init__("gpu_workers.weights.sending")

    async def serve(self, address: str, *, seconds: float) -> int:
        answer = await self.order({"do": "serve", "address": address, "seconds": seconds}, seconds=START_SECONDS)
        return int(answer["port"])

    async def form(self, name: str, world_size: int, backend: str, *, seconds: float) -> None:
        order = {"do": "form", "name": name, "world_size": world_size, "backend": backend}
        await self.order(order, seconds=seconds)

    async def send(self, file: Path, bucket: Bucket, *, seconds: float) -> None:
        await self.order({"do": "send", "file": str(file), "names": list(bucket.names)}, seconds=seconds)

    async def leave(self) -> None:
        await self.order({"do": "leave"}, seconds=_CLOSE_SECONDS)


_kept: list[SenderProcess] = []  # at most one, idle


def take_sender() -> SenderProcess:
    """The one that was kept, or a new one."""
    while _kept:
        sender = _kept.pop()
        if sender.alive:
            return sender
        sender.kill()
    return SenderProcess()


def keep_sender(sender: SenderProcess) -> None:
    """For the next install; importing torch takes seconds."""
    if _kept or not sender.alive:
        sender.kill()
    else:
        _kept.append(sender)


def close_kept() -> None:
    """End the kept one, as tests do."""
    while _kept:
        _kept.pop().kill()
