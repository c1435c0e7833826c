"""Members of a process group without one: a scripted engine that takes buckets, and a sender that sends nothing."""

import asyncio
from pathlib import Path

from gpu_workers.contracts.seams import Bucket, GroupAddress
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.scripted import ScriptedEngine
from gpu_workers.weights.adapter import InstallError


class Member(ScriptedEngine):
    """Like SGLang each bucket is in force at once; `swaps`: like the embedded engine all are at the end.

    `fails_at` is the bucket that is refused, `breaks` the calls that fail.
    """

    def __init__(
        self, *, swaps: bool = False, fails_at: int = -1, breaks: tuple[str, ...] = (), **options: object
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.swaps, self.fails_at, self.breaks = swaps, fails_at, breaks
        self.calls: list[str] = []
        self.taken: list[str] = []  # names in force
        self.versions: list[str] = []
        self._coming: list[str] | None = None
        self.readable = True

    def call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.breaks:
            raise EngineError(f"{name} fails", status=500)

    async def device(self) -> str:
        return "cpu"

    async def num_ranks(self, backend: str) -> int:
        return 1

    async def pause(self, mode: str = "abort") -> None:
        self.call("pause")
        await super().pause(mode)

    async def resume(self) -> None:
        self.call("resume")
        await super().resume()

    async def join_group(self, group: GroupAddress, rank: int, *, seconds: float) -> None:
        self.call("join")

    async def swaps_at_end(self) -> bool:
        return self.swaps

    async def begin_update(self, *, discard: bool = False) -> None:
        self.call("begin")
        assert self.swaps or not discard
        if self._coming is not None and not discard:
            raise EngineError("already open", status=400)
        self._coming = []

    async def receive(self, bucket: Bucket, group: str, *, seconds: float) -> None:
        self.call("receive")
        assert self._coming is not None
        if self.calls.count("receive") - 1 == self.fails_at:
            raise EngineError("Failed to receive weights", status=400, retryable=False)
        self._coming += bucket.names
        if not self.swaps:
            self.taken += bucket.names

    async def end_update(self) -> None:
        self.call("end")
        if self._coming is None:
            raise EngineError("no session", status=400)
        if self.swaps and self.calls.count("receive") - 1 != self.fails_at:
            self.taken += self._coming
        self._coming = None

    async def leave_group(self, group: str) -> None:
        self.call("leave")

    async def set_version(self, version: str) -> None:
        self.call("version")
        self.versions.append(version)
        self.weight_version = version

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        self.call("disk")
        if not self.readable:
            raise EngineError(f"cannot read {path}", status=400, retryable=False)
        await super().update_weights(path, version, flush_cache=flush_cache)
        self.taken = []

    async def weights_digest(self) -> str:
        if "digest" in self.breaks:
            raise EngineError("no digest", status=500)
        return f"{await super().weights_digest()} and {self.taken}"


class Silent(Member):
    """Takes every bucket and changes nothing."""

    async def weights_digest(self) -> str:
        return "the same"


class NoSender:
    """Rank 0 that nobody hears."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails, self.killed = fails, False
        self.sent: list[str] = []

    def _do(self, what: str) -> None:
        if what == self.fails:
            raise InstallError(f"{what} fails", retryable=True)

    async def serve(self, address: str, *, seconds: float) -> int:
        self._do("serve")
        return 1

    async def form(self, name: str, world_size: int, backend: str, *, seconds: float) -> None:
        self._do("form")

    async def send(self, file: Path, bucket: Bucket, *, seconds: float) -> None:
        await asyncio.sleep(0)
        self._do("send")
        self.sent += bucket.names

    async def leave(self) -> None:
        self._do("leave")

    def kill(self) -> None:
        self.killed = True
