"""A published version as a whole model folder on this host, however it was published."""

from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.delta.errors import DeltaError
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.manifest import DELTA
from gpu_workers.weights.full import verified_folder


def whole_folder(store: ObjectStore, cache: Path, item: AdapterInstall, base_fingerprint: str) -> Path:
    """The published folder, or, where only what changed was published, one rebuilt below `cache`. Raises InstallError.

    Its bytes are those that the version was published with.
    """
    if store.exists(f"{item.uri}/{WEIGHTS}") or not store.exists(f"{item.uri}/{DELTA}"):
        return verified_folder(store, cache, item, base_fingerprint)
    wanted = Wanted(name=item.name, uri=item.uri, sha256=item.sha256, base_fingerprint=base_fingerprint)
    try:
        return Path(CheckpointKeeper(store, cache / "weights").bring(wanted).path)
    except (DeltaError, StoreError, OSError) as error:
        raise InstallError(f"weights {item.name} cannot be rebuilt here: {error}") from error
