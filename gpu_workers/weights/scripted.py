"""A fake transfer: checks what it is given like the real ones and notes what every engine would hold."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.weights.adapter import ADAPTER_FILES, InstallError


class ScriptedTransfer:
    """WeightTransfer without engines. `held` maps an engine's URL to the names it holds."""

    def __init__(self, urls: Sequence[str], store: ObjectStore, cache: Path, *, fingerprint: str = "") -> None:
        self.held: dict[str, list[str]] = {url: [] for url in urls}
        self._store, self._cache, self._fingerprint = store, cache, fingerprint

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled:
        """Raises InstallError."""
        if base_fingerprint and self._fingerprint and base_fingerprint != self._fingerprint:
            raise InstallError(f"the engines serve another base model ({self._fingerprint[:12]}…)")
        num_bytes = sum(self._checked_bytes(item, base_fingerprint) for item in install)
        for names in self.held.values():
            names += [item.name for item in install if item.name not in names]
        retired = [name for name in retire if any(name in names for names in self.held.values())]
        for url, names in self.held.items():
            self.held[url] = [name for name in names if name not in retired]
        return PolicyInstalled(
            job_id="",
            ok=True,
            installed=[item.name for item in install],
            retired=retired,
            engines=list(self.held),
            num_bytes=num_bytes,
        )

    def _checked_bytes(self, item: AdapterInstall, base_fingerprint: str) -> int:
        try:
            folder = self._store.local_folder(item.uri, self._cache)
            data = (folder / ADAPTER_FILES[1]).read_bytes()
        except (StoreError, FileNotFoundError) as error:
            raise InstallError(f"adapter {item.name}: {ADAPTER_FILES[1]} is missing: {error}") from error
        if hashlib.sha256(data).hexdigest() != item.sha256:
            raise InstallError(f"adapter {item.name}: its bytes have another digest than expected: refused")
        manifest = folder / "manifest.json"
        made_for = json.loads(manifest.read_text()).get("base_fingerprint", "") if manifest.is_file() else ""
        if base_fingerprint and made_for and made_for != base_fingerprint:
            raise InstallError(f"adapter {item.name} was trained on another base model ({made_for[:12]}…): refused")
        return len(data)
