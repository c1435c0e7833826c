"""A host's copy of a version that is pulled from a peer: whole with the promised checksums, or not there."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta.errors import DeltaError
from gpu_workers.weights.delta.files import refusing_when_full, sync, sync_folder, write_whole
from gpu_workers.weights.delta.local import LocalVersions, Marker
from gpu_workers.weights.delta.manifest import MANIFEST
from gpu_workers.weights.ordered import OrderedProcess
from gpu_workers.weights.peer.messages import OfferedFile, PullAnswer, PullRequest
from gpu_workers.weights.served import same_bytes_in

PART_BYTES = 64 * 2**20  # a multiple of the page size
_START_SECONDS = 60.0


class PeerError(DeltaError):
    """A peer that went away, hung, or sent other bytes than were promised: nothing of it is used."""


class PulledManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json of a pulled folder."""

    name: str
    sha256: str
    files: dict[str, str]


@dataclass
class PeerKeeper:
    """Pulls below `cache`. `address`: of this host, for the transfer engine. What was served before stays."""

    cache: Path
    address: str = "127.0.0.1"
    local: LocalVersions = field(init=False)

    def __post_init__(self) -> None:
        self.local = LocalVersions(self.cache)

    def pull(self, request: PullRequest) -> PullAnswer:
        """Have the version here. Blocks. Raises PeerError, NoSpace or OSError."""
        started = time.monotonic()
        _check(request)
        same = [same_bytes_in(serving, request.wanted.sha256) for serving in request.serves]
        with self.local.locked(), refusing_when_full(self.cache):
            self.local.remove_unfinished()
            num_bytes, marker = 0, self._held(request)
            if marker is None:
                num_bytes = request.offer.num_bytes
                try:
                    marker = self._pull(request)
                except PeerError as error:
                    raise PeerError(f"weights {request.wanted.name} were not pulled: {error}") from error
            path = str(self.local.folder(marker))
        return PullAnswer(path=path, num_bytes=num_bytes, seconds=time.monotonic() - started, same_bytes=same)

    def _held(self, request: PullRequest) -> Marker | None:
        """The served copy, where it is this version and still whole."""
        marker = self.local.marker()
        if marker is None or marker.name != request.wanted.name:
            return None
        folder = self.local.folder(marker)
        whole = all(
            (folder / file.name).is_file() and file_sha256(folder / file.name) == file.sha256
            for file in request.offer.files
        )
        return marker if whole else None

    def _pull(self, request: PullRequest) -> Marker:
        self.local.remove_others()
        self.local.require_room(request.offer.num_bytes)
        name, sha256 = request.wanted.name, request.wanted.sha256
        with self.local.building() as folder, _pulling(self.address) as puller:
            for file in request.offer.files:
                puller.fetch(request, file, folder / file.name)
            files = {file.name: file.sha256 for file in request.offer.files}
            write_whole(folder / MANIFEST, msgspec.json.encode(PulledManifest(name=name, sha256=sha256, files=files)))
            sync_folder(folder)
            target = f"{sha256[:12]}-{folder.name.rpartition('-')[2][:8]}"
            folder.replace(folder.parent / target)
        return self.local.move_marker(Marker(name=name, folder=target, result_digest=sha256))


class _Puller:
    """One pulling process."""

    def __init__(self, address: str) -> None:
        self.process = OrderedProcess("gpu_workers.weights.peer.pulling")
        self._address = address

    def start(self) -> None:
        self._ask({"do": "start", "address": self._address}, _START_SECONDS)

    def fetch(self, request: PullRequest, file: OfferedFile, target: Path) -> None:
        """Raises PeerError where a part does not come, or where the whole is not what the commit says."""
        with target.open("wb") as handle:
            handle.truncate(file.num_bytes)
        for start in range(0, file.num_bytes, PART_BYTES):
            order = {
                "do": "pull",
                "file": str(target),
                "session": request.offer.session,
                "remote": file.address,
                "start": start,
                "size": min(PART_BYTES, file.num_bytes - start),
            }
            self._ask(order, request.stall_seconds)
        digest = file_sha256(target)
        if digest != file.sha256:
            raise PeerError(
                f"{file.name} came with digest {digest[:12]}…, promised was {file.sha256[:12]}…: torn or changed while "
                "it was pulled, refused"
            )
        with target.open("rb") as handle:
            sync(handle)

    def _ask(self, order: dict[str, Any], seconds: float) -> None:
        answer = self.process.ask(order, seconds)
        if not answer.get("ok"):
            raise PeerError(f"nothing of the peer's is used: {answer.get('error')}")


@contextmanager
def _pulling(address: str) -> Iterator[_Puller]:
    puller = _Puller(address)
    try:
        puller.start()
        yield puller
    finally:
        puller.process.kill()


def _check(request: PullRequest) -> None:
    """Names from elsewhere become files here. Raises PeerError."""
    names = [file.name for file in request.offer.files]
    weights = next((file for file in request.offer.files if file.name == WEIGHTS), None)
    if any("/" in name or name.startswith(".") or name == MANIFEST for name in names) or len(set(names)) != len(names):
        raise PeerError(f"weights {request.wanted.name}: the offer names files that no model folder has: {names}")
    if weights is None or weights.sha256 != request.wanted.sha256:
        raise PeerError(f"weights {request.wanted.name}: what is offered is not what was asked for: refused")
    if any(file.num_bytes < 1 for file in request.offer.files):
        raise PeerError(f"weights {request.wanted.name}: the offer holds an empty file")
