"""Rank 0 of a broadcast to one engine, step by step: what the engine suite asks of engines that take weights so."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path

from gpu_workers.contracts.seams import Bucket, CollectiveEngine, GroupAddress
from gpu_workers.weights.buckets import open_file, plan_buckets
from gpu_workers.weights.sender import SenderProcess, take_sender

SECONDS = 120.0


class Rank0:
    """A group of the sender and one engine, and the file that is sent."""

    def __init__(self, engine: CollectiveEngine, file: Path, *, bucket_bytes: int = 1 << 28) -> None:
        self.engine, self.file = engine, file
        self.buckets = plan_buckets(open_file(file).spans, bucket_bytes)
        self.sender: SenderProcess = take_sender()
        self.group = ""

    async def form(self) -> None:
        port = await self.sender.serve("127.0.0.1", seconds=SECONDS)
        name = f"test-{uuid.uuid4().hex[:8]}"
        ranks = await self.engine.num_ranks("gloo")
        address = GroupAddress(name, "127.0.0.1", port, 1 + ranks, "gloo")
        await asyncio.gather(
            self.engine.join_group(address, 1, seconds=SECONDS),
            self.sender.form(name, address.world_size, "gloo", seconds=SECONDS),
        )
        self.group = name

    async def send(self, bucket: Bucket, *, announced: Bucket | None = None) -> None:
        """`announced`: what the engine is told instead. Raises what the engine answers."""
        sending = asyncio.create_task(self.sender.send(self.file, bucket, seconds=SECONDS))
        try:
            await self.engine.receive(announced or bucket, self.group, seconds=SECONDS)
        finally:
            await sending

    async def send_all(self, buckets: Sequence[Bucket] = ()) -> None:
        for bucket in buckets or self.buckets:
            await self.send(bucket)

    async def leave(self) -> None:
        await self.engine.leave_group(self.group)
        await self.sender.leave()
