"""A published version as a whole model folder on this host, however it was published."""

from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.adapter import InstallError, check_made_for
from gpu_workers.weights.delta.errors import DeltaError
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.manifest import DELTA


def whole_folder(store: ObjectStore, cache: Path, item: AdapterInstall, base_fingerprint: str) -> Path:
    """The published folder, or, where only what changed was published, one rebuilt below `cache`. Raises InstallError.

    Its bytes are those that the version was published with.
    """
    if store.exists(f"{item.uri}/{WEIGHTS}") or not store.exists(f"{item.uri}/{DELTA}"):
        return _verified_folder(store, cache, item, base_fingerprint)
    wanted = Wanted(name=item.name, uri=item.uri, sha256=item.sha256, base_fingerprint=base_fingerprint)
    try:
        return Path(CheckpointKeeper(store, cache / "weights").bring(wanted).path)
    except (DeltaError, StoreError, OSError) as error:
        raise InstallError(f"weights {item.name} cannot be rebuilt here: {error}") from error


def _verified_folder(store: ObjectStore, cache: Path, item: AdapterInstall, base_fingerprint: str) -> Path:
    """The published model folder, here, with the bytes it was published with. Raises InstallError."""
    try:
        folder = store.local_folder(item.uri, cache)
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
