"""One broadcast as its members see it: what an engine takes, and what becomes of it when the transfer breaks off."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import Bucket, CollectiveEngine, GroupAddress, WorkerError
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.in_place import MIXED, MixedWeightsError

# After a failure the connections stay open for so long: an engine that asks for a bucket over a connection that is
# closed already is not told, one that waits for it is.
GRACE_SECONDS = 2.0
RECOVER_SECONDS = 30.0  # for an engine to say what it has after a failure


class Gate:
    """Opens when `num` have come to it; aborted before that it never does."""

    def __init__(self, num: int) -> None:
        self._missing, self._open, self._settled = num, False, asyncio.Event()

    async def wait(self) -> bool:
        """Whether it opened."""
        self._missing -= 1
        if not self._missing and not self._settled.is_set():
            self._open = True
            self._settled.set()
        await self._settled.wait()
        return self._open

    def abort(self) -> None:
        self._settled.set()


@dataclass
class Course:
    """One broadcast under way. `started` opens when every engine may be sent to: it is paused, or one of `swapping`,
    which change nothing before the end. `failure` is the first that came.

    `folder` holds what is sent; `versions` and `digests` are the engines' before.
    """

    item: AdapterInstall
    folder: Path
    group: GroupAddress
    buckets: Sequence[Bucket]
    seconds: float
    started: Gate
    versions: dict[str, str]
    digests: dict[str, str]
    swapping: frozenset[str]
    failure: str = ""
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    repaired: list[str] = field(default_factory=list)

    def fail(self, why: str) -> None:
        self.failure = self.failure or why
        self.failed.set()

    async def stage(self, url: str, engine: CollectiveEngine) -> None:
        """The tensors, before the pause, where they change nothing yet. Raises InstallError; the old weights stay."""
        if url not in self.swapping:
            return
        await self._until_started(url)
        try:
            await engine.begin_update(discard=True)
            await self._receive(engine)
        except WorkerError as error:
            self.fail(f"engine {url}: {error}")
            with contextlib.suppress(WorkerError, TimeoutError):
                async with asyncio.timeout(RECOVER_SECONDS):
                    await engine.begin_update(discard=True)
                    await engine.end_update()
            raise InstallError(
                f"the broadcast broke off ({self.failure}); engine {url} keeps its old weights", retryable=True
            ) from error

    async def take(self, url: str, engine: CollectiveEngine, *, same_bytes: bool | None) -> None:
        """The tensors, unless staged; then, when the digest says that they are there, the version. Raises InstallError.

        Until then the engine's weights carry a name that no request accepts, whoever continues it.
        """
        name, staged = self.item.name, url in self.swapping
        if not staged:
            await self._until_started(url)
        try:
            await engine.set_version(f"{MIXED} of {self.versions[url]} and {name}")
            if not staged:
                await _begin(engine)
                await self._receive(engine)
            await engine.end_update()
            unchanged = await engine.weights_digest() == self.digests[url]
        except WorkerError as error:
            self.fail(f"engine {url}: {error}")
            await self._recover(url, engine)
            return
        if unchanged and not same_bytes:
            await self._keep_old(url, engine, f"engine {url} took weights {name}, but its weights did not change")
        try:
            await engine.set_version(name)
        except WorkerError as error:
            raise MixedWeightsError(
                f"engine {url} has weights {name} but did not take their name ({error}): it stays paused"
            ) from error

    async def _until_started(self, url: str) -> None:
        if not await self.started.wait():
            raise InstallError(f"nothing was sent to engine {url}: {self.failure}", retryable=True)

    async def _receive(self, engine: CollectiveEngine) -> None:
        for bucket in self.buckets:
            await engine.receive(bucket, self.group.name, seconds=self.seconds + 2 * GRACE_SECONDS)

    async def _recover(self, url: str, engine: CollectiveEngine) -> None:
        """After a broken transfer: returns when the engine has read the new weights from disk. Raises InstallError."""
        name, why = self.item.name, self.failure
        try:
            async with asyncio.timeout(RECOVER_SECONDS):
                with contextlib.suppress(WorkerError):
                    await engine.end_update()
                unchanged = await engine.weights_digest() == self.digests[url]
        except (WorkerError, TimeoutError) as error:
            raise MixedWeightsError(
                f"the broadcast broke off ({why}) and engine {url} does not say which weights it has "
                f"({error or 'no answer'}): it was left paused, restart it"
            ) from error
        if unchanged:
            await self._keep_old(url, engine, f"the broadcast broke off ({why}); engine {url} keeps its old weights")
        try:
            await engine.update_weights(str(self.folder), name, flush_cache=True)
        except WorkerError as error:
            raise MixedWeightsError(
                f"the broadcast broke off ({why}) and engine {url} holds a mixture that cannot be repaired from "
                f"{self.folder} ({error}): it stays paused, restart it"
            ) from error
        self.repaired.append(f"the broadcast broke off ({why}); engine {url} read weights {name} from disk")

    async def _keep_old(self, url: str, engine: CollectiveEngine, why: str) -> None:
        """Always raises: the old weights get their name back, and the engine may go on, unless they were a mixture."""
        try:
            await engine.set_version(self.versions[url])
        except WorkerError as error:
            raise MixedWeightsError(f"{why}, and it did not take their name ({error}): it stays paused") from error
        raise InstallError(why, retryable=True)


async def _begin(engine: CollectiveEngine) -> None:
    """A session that a sender left open when it died is ended: what came in it is overwritten now."""
    try:
        await engine.begin_update()
    except WorkerError:
        await engine.end_update()
        await engine.begin_update()
