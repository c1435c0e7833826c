"""The base model as a published version, so that every transfer brings it as it brings any other."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, ModelError, file_sha256, read_description
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.delta.manifest import DELTA, MANIFEST
from gpu_workers.weights.delta.publisher import DeltaPublisher


@dataclass(frozen=True)
class _Told:
    name: str
    version: int
    sha256: str
    base_fingerprint: str


def published_base(store: ObjectStore, folder: Path, cache: Path, item: AdapterInstall) -> AdapterInstall:
    """`item`, which names no weights, with those of the base model: put into the store where they are not there yet.

    Raises InstallError where the base model is not on this host, or not what its description says.
    """
    try:
        fingerprint = read_description(folder).fingerprint
    except ModelError as error:
        raise InstallError(f"weights {item.name} are those of the base model, but {error}") from error
    key = f"models/{fingerprint}"
    if not store.exists(f"{key}/{MANIFEST}"):
        _publish(store, folder, cache, fingerprint, key)
    return AdapterInstall(name=item.name, uri=key, sha256=fingerprint, version=item.version)


def _publish(store: ObjectStore, folder: Path, cache: Path, fingerprint: str, key: str) -> None:
    digest = file_sha256(folder / WEIGHTS)
    if digest != fingerprint:
        raise InstallError(
            f"{folder / WEIGHTS} has digest {digest[:12]}…, its description says {fingerprint[:12]}…: prepare the base "
            "model again"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="base-", dir=cache) as name:
        made, work = Path(name) / "model", Path(name) / "work"
        made.mkdir()
        for file in folder.iterdir():
            if file.is_file() and not file.name.startswith(".") and file.name not in (MANIFEST, DELTA):
                _copy(file, made / file.name)
        DeltaPublisher(work, 1).seal(made, _Told(f"base-{digest[:16]}", 0, digest, fingerprint), key)
        store.put_folder(key, made)


def _copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another disk
        shutil.copyfile(source, target)
