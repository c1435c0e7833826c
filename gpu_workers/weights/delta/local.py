"""The checkpoint on an engine's host: one version at a time, replaced as a whole or not at all.

<cache>/current.json       which folder is served; moved by renaming, after everything else is on the disk
<cache>/versions/<name>/   a model folder with the manifest of its version
<cache>/lock               held by the process that changes any of this
"""

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights.delta.errors import BadBase, BadLink, NoSpace
from gpu_workers.weights.delta.files import sync_folder, write_whole
from gpu_workers.weights.delta.layout import LayoutError, WeightsFile, open_weights
from gpu_workers.weights.delta.manifest import MANIFEST, VersionManifest, encode_manifest, read_local

MARKER = "current.json"
_VERSIONS = "versions"
_BUILDING = ".building-"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """current.json. `name` may be a later version of the same bytes than the folder's manifest says."""

    name: str
    folder: str
    result_digest: str


class LocalVersions:
    """What lies in one cache folder. Changing it needs the lock."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._versions = cache / _VERSIONS

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time; the system lets go of it when a process ends, however it ends."""
        self._versions.mkdir(parents=True, exist_ok=True)
        with (self.cache / "lock").open("wb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def marker(self) -> Marker | None:
        """None where nothing is served, or where what the marker names is not there."""
        try:
            marker = msgspec.json.decode((self.cache / MARKER).read_bytes(), type=Marker)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return marker if "/" not in marker.folder and self.folder(marker).is_dir() else None

    def folder(self, marker: Marker) -> Path:
        return self._versions / marker.folder

    def read(self, marker: Marker) -> tuple[WeightsFile, VersionManifest]:
        """The served version, mapped. Raises BadBase when it is not whole."""
        folder = self.folder(marker)
        try:
            manifest = read_local(folder)
            weights = open_weights(folder / WEIGHTS)
        except (BadLink, LayoutError, OSError) as error:
            raise BadBase(f"the local copy of {marker.name} is damaged ({error})") from error
        if manifest.result_digest != marker.result_digest:
            raise BadBase(f"the local copy of {marker.name} is not what its marker says")
        return weights, manifest

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A folder for the next version; gone afterwards unless `serve` was given it."""
        target = self._versions / f"{_BUILDING}{uuid.uuid4().hex}"
        target.mkdir()
        try:
            yield target
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def serve(self, built: Path, manifest: VersionManifest) -> Marker:
        """Make a built folder, every file of it synced, the served one."""
        write_whole(built / MANIFEST, encode_manifest(manifest))
        folder = f"v{manifest.version:06d}-{manifest.result_digest[:12]}-{uuid.uuid4().hex[:8]}"
        built.replace(self._versions / folder)
        sync_folder(self._versions)
        return self.move_marker(Marker(name=manifest.name, folder=folder, result_digest=manifest.result_digest))

    def move_marker(self, marker: Marker) -> Marker:
        write_whole(self.cache / MARKER, msgspec.json.encode(marker))
        return marker

    def remove_unfinished(self) -> None:
        """Delete what a killed process left half done."""
        for path in [*self._versions.glob(f"{_BUILDING}*"), *self.cache.glob(f".{MARKER}.*")]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def remove_others(self) -> None:
        """Delete every copy but the served one: the one before it was kept for engines that had not moved on yet."""
        marker = self.marker()
        for path in self._versions.iterdir():
            if marker is None or path.name != marker.folder:
                shutil.rmtree(path, ignore_errors=True)

    def require_room(self, num_bytes: int) -> None:
        """Raises NoSpace before anything is written, where a copy cannot fit."""
        free = shutil.disk_usage(self.cache).free
        if free < num_bytes:
            raise NoSpace(
                f"{self.cache} has {free >> 20} MiB free, another copy of the model needs {num_bytes >> 20}: "
                "free disk space"
            )
