"""Full weights from disk: a checked model folder in the store replaces what an engine serves."""

import asyncio

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights.in_place import Brought, InPlaceTransfer
from gpu_workers.weights.served import same_bytes_in, serving_of
from gpu_workers.weights.whole import whole_folder


class FullTransfer(InPlaceTransfer):
    """WeightTransfer by `update_weights_from_disk` of whole models, read from the store, or from a copy of it here."""

    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """Raises InstallError."""
        folder = await asyncio.to_thread(whole_folder, self._store, self._cache, item, base_fingerprint)
        return Brought.in_folders(
            lambda _: str(folder),
            item,
            same_bytes=lambda _, info: same_bytes_in(serving_of(info), item.sha256),
            num_bytes=(folder / WEIGHTS).stat().st_size,
        )
