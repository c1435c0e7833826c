"""Full weights from disk: a checked model folder in the store replaces what an engine serves."""

import asyncio
import json
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import EngineInfo
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.in_place import Brought, InPlaceTransfer
from gpu_workers.weights.whole import whole_folder


class FullTransfer(InPlaceTransfer):
    """WeightTransfer by `update_weights_from_disk` of whole models, read from the store, or from a copy of it here."""

    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """Raises InstallError."""
        folder = await asyncio.to_thread(whole_folder, self._store, self._cache, item, base_fingerprint)
        return Brought(
            put=lambda _, engine: engine.update_weights(str(folder), item.name, flush_cache=True),
            same_bytes=lambda _, info: has_same_bytes(info, item.sha256),
            num_bytes=(folder / WEIGHTS).stat().st_size,
        )


def has_same_bytes(info: EngineInfo, sha256: str) -> bool | None:
    """Whether the weights that an engine serves are these, byte for byte; None when its folder here does not tell.

    A folder tells only of the version that it was published as: what came over a network since is not in it.
    """
    folder = Path(info.model_path)
    manifest, file = folder / "manifest.json", folder / WEIGHTS
    if manifest.is_file():
        published = json.loads(manifest.read_text())
        return bool(published.get("sha256") == sha256) if published.get("name") == info.weight_version else None
    if "@v" in info.weight_version or not file.is_file():
        return None
    return file_sha256(file) == sha256
