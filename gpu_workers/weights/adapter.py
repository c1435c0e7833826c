"""Adapter push: a PEFT folder is checked, loaded beside the others on every engine, read back and probed. No pause."""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_workers.contracts.checkpoints import ADAPTER_WEIGHTS
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled, Sampling
from gpu_workers.contracts.seams import GenerateRequest, RolloutEngine, WorkerError
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.weights.gaps import TokenGaps

ADAPTER_FILES = ("adapter_config.json", ADAPTER_WEIGHTS)
_PROBE_IDS = (1,)  # any valid prompt: the probe only asks whether the adapter samples finite log-probs


class InstallError(WorkerError):
    """An adapter that may not or could not be installed; says which and why."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(Boundary.ENGINE, message, retryable=retryable)


def check_made_for(what: str, folder: Path, base_fingerprint: str) -> None:
    """Raises InstallError when the folder's manifest names another base model."""
    manifest = folder / "manifest.json"
    made_for = json.loads(manifest.read_text()).get("base_fingerprint", "") if manifest.is_file() else ""
    if base_fingerprint and made_for and made_for != base_fingerprint:
        raise InstallError(f"{what} was trained on another base model ({made_for[:12]}…): refused")


class AdapterTransfer:
    """WeightTransfer by adapter push onto every engine, or an error; what was loaded before the error stays loaded.

    The base model's fingerprint is compared with the engines' own where they tell it, and with the adapter's manifest.
    """

    def __init__(self, engines: Sequence[tuple[str, RolloutEngine]], store: ObjectStore, cache: Path) -> None:
        self._engines = engines
        self._store = store
        self._cache = cache

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled:
        """Raises InstallError, or WorkerError(ENGINE) of an engine that fails."""
        started = time.monotonic()
        folders = [(item, self._verified_folder(item, base_fingerprint)) for item in install]
        gaps = TokenGaps()
        for url, engine in self._engines:
            await self._check_base(url, engine, base_fingerprint)
            await gaps.start(url, engine)
            for item, folder in folders:
                await self._load(url, engine, item, folder)
            await self._check_held(url, engine, [item.name for item in install])
            await gaps.stop(url, engine)
        retired = [name for name in retire if await self._retire(name)]
        return PolicyInstalled(
            job_id="",
            ok=True,
            installed=[item.name for item in install],
            retired=retired,
            engines=[url for url, _ in self._engines],
            duration_seconds=time.monotonic() - started,
            pause_seconds=gaps.longest,
            steady_gap_seconds=gaps.steady,
            num_bytes=sum((folder / ADAPTER_FILES[1]).stat().st_size for _, folder in folders),
        )

    def _verified_folder(self, item: AdapterInstall, base_fingerprint: str) -> Path:
        try:
            folder = self._store.local_folder(item.uri, self._cache)
        except StoreError as error:
            raise InstallError(f"adapter {item.name}: {error}") from error
        for name in ADAPTER_FILES:
            if not (folder / name).is_file():
                raise InstallError(f"adapter {item.name}: {name} is missing from {item.uri}")
        digest = hashlib.sha256((folder / ADAPTER_FILES[1]).read_bytes()).hexdigest()
        if digest != item.sha256:
            raise InstallError(
                f"adapter {item.name}: its bytes have digest {digest[:12]}…, expected {item.sha256[:12]}…: refused"
            )
        check_made_for(f"adapter {item.name}", folder, base_fingerprint)
        return folder

    async def _check_base(self, url: str, engine: RolloutEngine, base_fingerprint: str) -> None:
        serves = str((await engine.info()).raw.get("model_fingerprint", ""))
        if base_fingerprint and serves and serves != base_fingerprint:
            raise InstallError(
                f"engine {url} serves another base model ({serves[:12]}…, wanted {base_fingerprint[:12]}…)"
            )

    async def _check_held(self, url: str, engine: RolloutEngine, names: Sequence[str]) -> None:
        """An engine makes room for an adapter by pushing out another, maybe one of these."""
        held = (await engine.info()).adapters
        lost = [name for name in names if name not in held]
        if lost:
            raise InstallError(
                f"engine {url} no longer lists {', '.join(lost)}: it has fewer slots than the {len(names)} adapters "
                "installed together", retryable=True,
            )  # fmt: skip

    async def _load(self, url: str, engine: RolloutEngine, item: AdapterInstall, folder: Path) -> None:
        if item.name not in (await engine.info()).adapters:
            await engine.load_adapter(item.name, str(folder))
        if item.name not in (await engine.info()).adapters:
            raise InstallError(f"engine {url} took adapter {item.name} but does not list it", retryable=True)
        probe = GenerateRequest(
            input_ids=_PROBE_IDS, sampling=Sampling(max_new_tokens=1, temperature=1.0), adapter=item.name
        )
        result = await engine.generate(probe)
        if not result.logprobs or not all(math.isfinite(value) for value in result.logprobs):
            await engine.unload_adapter(item.name)
            raise InstallError(f"adapter {item.name} on engine {url} samples log-probs that are not finite: refused")

    async def _retire(self, name: str) -> bool:
        """Unload where it is loaded. False when no engine held it."""
        held = [engine for _, engine in self._engines if name in (await engine.info()).adapters]
        for engine in held:
            await engine.unload_adapter(name)
        return bool(held)
