"""Replacing what an engine serves, between two tokens of its requests: the one path of every transfer of whole models.

Bring, check, stage (generation goes on) → pause, requests retracted → put → flush → read version and digest back →
continue → probe. A transfer of this kind says only how weights are brought and how a paused engine takes them.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled, Sampling
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, RolloutEngine, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.served import is_confirmed, note_confirmed, note_replacing, same_bytes_confirmed

_PROBE_IDS = (1,)
_FLUSH_TRIES = 6
_FLUSH_WAIT_SECONDS = 0.05  # doubles


MIXED = "mixture"  # begins the name of weights that may be of two versions: no request accepts it
UNCONFIRMED = "unconfirmed"  # begins the name of weights that were not found to be what was asked for: nor this


class MixedWeightsError(InstallError):
    """An engine that may hold tensors of two versions: it has to stay paused, whatever it would answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


@dataclass(frozen=True)
class Brought:
    """Checked weights that every engine can now take.

    `stage` lets the engine of a URL do beforehand what it can, changing nothing; `put` has it, paused, take them under
    the version's name, and is told what is known of its bytes.
    `same_bytes` says whether an engine has exactly these weights already, by its folder; None where that does not tell;
    it may block. `num_bytes` were moved to bring them, and `density` is the share of the model's elements that these
    bytes change, None where that was not counted.
    """

    put: Callable[[str, RolloutEngine, bool | None], Awaitable[None]]
    same_bytes: Callable[[str, EngineInfo], bool | None]
    num_bytes: int
    density: float | None = None
    stage: Callable[[str, RolloutEngine], Awaitable[object]] | None = None

    @classmethod
    def in_folders(
        cls,
        folder: Callable[[str], str],
        item: AdapterInstall,
        *,
        same_bytes: Callable[[str, EngineInfo], bool | None],
        num_bytes: int,
        density: float | None = None,
    ) -> "Brought":
        """Where the engine of a URL can read them: `folder(url)`, on its own host."""
        return cls(
            put=lambda url, engine, _: engine.update_weights(folder(url), item.name, flush_cache=True),
            same_bytes=same_bytes,
            num_bytes=num_bytes,
            density=density,
            stage=lambda url, engine: engine.stage_weights(folder(url)),
        )


class InPlaceTransfer(ABC):
    """WeightTransfer of whole models, engine after engine: while one is paused the others go on.

    An engine never continues over keys and values of other weights: where they cannot be flushed its requests are
    aborted first. One set of base weights is served at a time, so nothing is ever retired.
    """

    def __init__(self, engines: Sequence[tuple[str, RolloutEngine]], store: ObjectStore, cache: Path) -> None:
        self._engines = engines
        self._store = store
        self._cache = cache

    @abstractmethod
    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """Fetch and check, while every engine goes on. Raises InstallError."""

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled:
        """Puts the newest of `install` on every engine. Raises InstallError, or WorkerError(ENGINE).

        What an engine before the failing one has taken stays: versions are read from each result, so a fleet in the
        middle of an update mislabels nothing, and asking again goes on from there.
        """
        started = time.monotonic()
        report = PolicyInstalled(job_id="", ok=True, engines=[url for url, _ in self._engines])
        if install:
            item = max(install, key=lambda one: one.version)
            brought = await self.bring(item, base_fingerprint)
            pauses = [await replace_weights(url, engine, item, brought) for url, engine in self._engines]
            report.installed = [item.name]
            report.pause_seconds = max((pause for pause in pauses if pause is not None), default=None)
            report.num_bytes, report.density = brought.num_bytes, brought.density
        report.duration_seconds = time.monotonic() - started
        return report


async def replace_weights(url: str, engine: RolloutEngine, item: AdapterInstall, brought: Brought) -> float | None:
    """Seconds for which the engine sampled nothing; None when it had these weights already."""
    before = await engine.info()
    if before.weight_version == item.name:
        return None if is_confirmed(url, before, item) else await _go_on_with(url, engine, item)
    same_bytes = same_bytes_confirmed(url, before, item.sha256)
    if same_bytes is None:
        same_bytes = await asyncio.to_thread(brought.same_bytes, url, before)
    digest = await engine.weights_digest()
    if brought.stage is not None:
        await brought.stage(url, engine)
    note_replacing(url)
    paused_at = time.monotonic()
    await engine.pause("retract")
    try:
        await brought.put(url, engine, same_bytes)
        await _flush(url, engine)
        await _confirm(url, engine, item, digest, same_bytes)
    except MixedWeightsError:
        raise
    except WorkerError as error:
        if before.weight_version.startswith(MIXED):
            raise MixedWeightsError(
                f"{error}; engine {url} holds {before.weight_version} since an update broke off: it stays paused"
            ) from error
        await _leave_consistent(engine, item, before.weight_version, digest)
        raise
    return await _go_on(url, engine, item, paused_at)


async def _go_on_with(url: str, engine: RolloutEngine, item: AdapterInstall) -> float:
    """Seconds of pause. Whoever put the weights there may have died before the engine was flushed and continued."""
    paused_at = time.monotonic()
    await engine.pause("retract")
    await _flush(url, engine)
    return await _go_on(url, engine, item, paused_at)


async def _go_on(url: str, engine: RolloutEngine, item: AdapterInstall, paused_at: float) -> float:
    """Seconds of pause. From here on the engine is known to sample from these weights."""
    await engine.resume()
    pause_seconds = time.monotonic() - paused_at
    await _probe(url, engine, item)
    note_confirmed(url, item)
    return pause_seconds


async def _flush(url: str, engine: RolloutEngine) -> None:
    """Raises InstallError when keys and values computed with other weights may be left."""
    for attempt in range(_FLUSH_TRIES):
        try:
            await engine.flush_cache()
            return
        except WorkerError as error:
            if attempt == _FLUSH_TRIES - 1:
                raise InstallError(f"engine {url} does not flush its cache: {error}", retryable=True) from error
            await asyncio.sleep(_FLUSH_WAIT_SECONDS * 2**attempt)


async def _confirm(
    url: str, engine: RolloutEngine, item: AdapterInstall, digest_before: str, same_bytes: bool | None
) -> None:
    """The version is what was asked for, and the weights are others exactly when the bytes are. None: not known."""
    version = (await engine.info()).weight_version
    if version != item.name:
        raise InstallError(f"engine {url} took weights {item.name} but says it has {version!r}", retryable=True)
    changed = await engine.weights_digest() != digest_before
    if same_bytes is not None and changed is same_bytes:
        raise InstallError(
            f"engine {url} says it has weights {item.name}, but "
            + ("they are not the bytes it had before" if same_bytes else "its weights did not change"),
            retryable=True,
        )


async def _leave_consistent(engine: RolloutEngine, item: AdapterInstall, version: str, digest: str) -> None:
    """After a failed update: the old weights have their old `version`, others a name that no request accepts, and no
    request goes on over another's keys and values.

    An engine that cannot be brought there stays paused: silence is noticed, wrong tokens are not.
    """
    try:
        name = version if await engine.weights_digest() == digest else f"{UNCONFIRMED} {item.name}"
        if (await engine.info()).weight_version != name:
            await engine.set_version(name)
    except WorkerError:
        return
    try:
        await engine.flush_cache()
    except WorkerError:
        try:
            await engine.pause("abort")
            await engine.flush_cache()
        except WorkerError:
            return
    try:
        await engine.resume()
    except WorkerError:
        return


async def _probe(url: str, engine: RolloutEngine, item: AdapterInstall) -> None:
    """A token comes, with a finite log-prob, and it is these weights'."""
    sampling = Sampling(max_new_tokens=1, temperature=1.0)
    result = await engine.generate(GenerateRequest(_PROBE_IDS, sampling, weights=item.name))
    if not result.logprobs or not all(math.isfinite(value) for value in result.logprobs):
        raise InstallError(f"engine {url} samples log-probs that are not finite from weights {item.name}")
