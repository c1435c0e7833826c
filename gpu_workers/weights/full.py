"""Full weights from disk: a checked model folder replaces what an engine serves, between two tokens of its requests."""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled, Sampling
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, RolloutEngine, WorkerError
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.adapter import InstallError, check_made_for

_PROBE_IDS = (1,)
_FLUSH_TRIES = 6
_FLUSH_WAIT_SECONDS = 0.05  # doubles


class FullTransfer:
    """WeightTransfer by `update_weights_from_disk`, engine after engine: while one is paused the others go on.

    Fetch and check (generation goes on) → pause, requests retracted → update → flush → read version and digest back →
    continue. An engine never continues over keys and values of other weights: where they cannot be flushed its
    requests are aborted first. One set of base weights is served at a time, so nothing is ever retired.
    """

    def __init__(self, engines: Sequence[tuple[str, RolloutEngine]], store: ObjectStore, cache: Path) -> None:
        self._engines = engines
        self._store = store
        self._cache = cache

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled:
        """Puts the newest of `install` on every engine. Raises InstallError, or WorkerError(ENGINE).

        What an engine before the failing one has taken stays: versions are read from each result, so a fleet in the
        middle of an update mislabels nothing, and asking again goes on from there.
        """
        started = time.monotonic()
        if not install:
            return self._report([], started, None, 0)
        item = max(install, key=lambda one: one.version)
        folder = await asyncio.to_thread(self._verified_folder, item, base_fingerprint)
        pauses = [await self._update(url, engine, item, folder) for url, engine in self._engines]
        longest = max((pause for pause in pauses if pause is not None), default=None)
        return self._report([item.name], started, longest, (folder / WEIGHTS).stat().st_size)

    def _report(
        self, installed: list[str], started: float, pause_seconds: float | None, num_bytes: int
    ) -> PolicyInstalled:
        return PolicyInstalled(
            job_id="",
            ok=True,
            installed=installed,
            engines=[url for url, _ in self._engines],
            duration_seconds=time.monotonic() - started,
            pause_seconds=pause_seconds,
            num_bytes=num_bytes,
        )

    def _verified_folder(self, item: AdapterInstall, base_fingerprint: str) -> Path:
        try:
            folder = self._store.local_folder(item.uri, self._cache)
        except StoreError as error:
            raise InstallError(f"weights {item.name}: {error}") from error
        for name in ("config.json", WEIGHTS):
            if not (folder / name).is_file():
                raise InstallError(f"weights {item.name}: {name} is missing from {item.uri}")
        digest = file_sha256(folder / WEIGHTS)
        if digest != item.sha256:
            raise InstallError(
                f"weights {item.name}: their bytes have digest {digest[:12]}…, expected {item.sha256[:12]}…: refused"
            )
        check_made_for(f"weights {item.name}", folder, base_fingerprint)
        return folder

    async def _update(self, url: str, engine: RolloutEngine, item: AdapterInstall, folder: Path) -> float | None:
        """Seconds for which the engine sampled nothing; None when it had these weights already."""
        before = await engine.info()
        if before.weight_version == item.name:
            return None
        same_bytes = await asyncio.to_thread(_has_same_bytes, before, item.sha256)
        digest = await engine.weights_digest()
        paused_at = time.monotonic()
        await engine.pause("retract")
        try:
            await engine.update_weights(str(folder), item.name, flush_cache=True)
            await _flush(url, engine)
            await _confirm(url, engine, item, digest, same_bytes)
        except WorkerError:
            await _leave_consistent(engine)
            raise
        await engine.resume()
        pause_seconds = time.monotonic() - paused_at
        await _probe(url, engine, item)
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


async def _leave_consistent(engine: RolloutEngine) -> None:
    """After a failed update: whatever weights it has now, no request goes on over another's keys and values.

    An engine that cannot be brought there stays paused: silence is noticed, wrong tokens are not.
    """
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


def _has_same_bytes(info: EngineInfo, sha256: str) -> bool | None:
    """Whether the weights that an engine serves are these, byte for byte; None when its folder cannot be read here."""
    folder = Path(info.model_path)
    manifest, file = folder / "manifest.json", folder / WEIGHTS
    if manifest.is_file():
        return bool(json.loads(manifest.read_text()).get("sha256") == sha256)
    return file_sha256(file) == sha256 if file.is_file() else None
