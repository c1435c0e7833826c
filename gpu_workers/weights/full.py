"""Full weights from disk: a checked model folder in the store replaces what an engine serves."""

import asyncio
import json
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import EngineInfo
from gpu_workers.contracts.store import StoreError
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.adapter import InstallError, check_made_for
from gpu_workers.weights.delta.manifest import DELTA
from gpu_workers.weights.in_place import Brought, InPlaceTransfer


class FullTransfer(InPlaceTransfer):
    """WeightTransfer by `update_weights_from_disk` of whole models, read from the store, or from a copy of it here."""

    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """Raises InstallError."""
        folder = await asyncio.to_thread(self._verified_folder, item, base_fingerprint)
        return Brought(
            put=lambda _, engine: engine.update_weights(str(folder), item.name, flush_cache=True),
            same_bytes=lambda _, info: has_same_bytes(info, item.sha256),
            num_bytes=(folder / WEIGHTS).stat().st_size,
        )

    def _verified_folder(self, item: AdapterInstall, base_fingerprint: str) -> Path:
        try:
            folder = self._store.local_folder(item.uri, self._cache)
        except StoreError as error:
            raise InstallError(f"weights {item.name}: {error}") from error
        for name in ("config.json", WEIGHTS):
            if not (folder / name).is_file():
                hint = ": only what changed is stored, install it by transfer delta" if _is_delta(folder) else ""
                raise InstallError(f"weights {item.name}: {name} is missing from {item.uri}{hint}")
        digest = file_sha256(folder / WEIGHTS)
        if digest != item.sha256:
            raise InstallError(
                f"weights {item.name}: their bytes have digest {digest[:12]}…, expected {item.sha256[:12]}…: refused"
            )
        check_made_for(f"weights {item.name}", folder, base_fingerprint)
        return folder


def _is_delta(folder: Path) -> bool:
    return (folder / DELTA).is_file()


def has_same_bytes(info: EngineInfo, sha256: str) -> bool | None:
    """Whether the weights that an engine serves are these, byte for byte; None when its folder cannot be read here."""
    folder = Path(info.model_path)
    manifest, file = folder / "manifest.json", folder / WEIGHTS
    if manifest.is_file():
        return bool(json.loads(manifest.read_text()).get("sha256") == sha256)
    return file_sha256(file) == sha256 if file.is_file() else None
