"""The fleet worker's handle of the process that sends a broadcast: kept between installs, killed when one fails."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gpu_workers.contracts.seams import Bucket
from gpu_workers.weights.adapter import InstallError

START_SECONDS = 120.0  # torch is imported
_CLOSE_SECONDS = 5.0


class Sender(Protocol):
    """Rank 0 of a group. Raises InstallError."""

    async def serve(self, address: str, *, seconds: float) -> int: ...  # the port of the store
    async def form(self, name: str, world_size: int, backend: str, *, seconds: float) -> None: ...
    async def send(self, file: Path, bucket: Bucket, *, seconds: float) -> None: ...
    async def leave(self) -> None: ...
    def kill(self) -> None: ...


class SenderProcess:
    """Sender in a process of its own."""

    def __init__(self) -> None:
        environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"} | dict(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_workers.weights.sending"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def serve(self, address: str, *, seconds: float) -> int:
        answer = await self._order({"do": "serve", "address": address, "seconds": seconds}, START_SECONDS)
        return int(answer["port"])

    async def form(self, name: str, world_size: int, backend: str, *, seconds: float) -> None:
        await self._order({"do": "form", "name": name, "world_size": world_size, "backend": backend}, seconds)

    async def send(self, file: Path, bucket: Bucket, *, seconds: float) -> None:
        await self._order({"do": "send", "file": str(file), "names": list(bucket.names)}, seconds)

    async def leave(self) -> None:
        await self._order({"do": "leave"}, _CLOSE_SECONDS)

    def kill(self) -> None:
        """Its connections close with it: whoever waits for it is told."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    async def _order(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        """A sender that does not answer in time is killed: a collective that hangs cannot be given up otherwise."""
        asking = asyncio.create_task(asyncio.to_thread(self._ask, order))
        done, _ = await asyncio.wait({asking}, timeout=seconds)
        if not done:
            self._process.kill()
            await asking
            raise InstallError(f"the sender did not {order['do']} within {seconds:g} s", retryable=True)
        answer = asking.result()
        if not answer.get("ok"):
            raise InstallError(str(answer.get("error", "the sender failed")), retryable=True)
        return answer

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        if not line:
            return {"ok": False, "error": f"the sender ended (exit status {self._process.poll()})"}
        return dict(json.loads(line))


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


__all__: Sequence[str] = ["Sender", "SenderProcess", "close_kept", "keep_sender", "take_sender"]
