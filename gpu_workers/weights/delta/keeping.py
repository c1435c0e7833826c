"""Keeping a host's checkpoint at the wanted version: find a way, fetch, rebuild, check, and only then serve it."""

import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta.apply import Step, open_step, rebuild, verify
from gpu_workers.weights.delta.chain import Link, Way, find_ways, store_reader
from gpu_workers.weights.delta.encode import copy_durably
from gpu_workers.weights.delta.errors import BadBase, BadLink, WrongModel
from gpu_workers.weights.delta.files import refusing_when_full, sync_folder
from gpu_workers.weights.delta.layout import LayoutError, WeightsFile, open_weights
from gpu_workers.weights.delta.local import LocalVersions, Marker
from gpu_workers.weights.delta.manifest import DELTA, VersionManifest


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A published version as the control plane names it; `base_fingerprint` empty: of any base model."""

    name: str
    uri: str
    sha256: str
    base_fingerprint: str = ""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint that now lies on this host."""

    name: str
    path: str
    sha256: str
    result_digest: str
    num_bytes: int = 0  # read from the store for it
    density: float | None = None  # words that the deltas changed / all words; 1: from a snapshot; None: nothing changed
    from_snapshot: bool = False
    seconds: float = 0.0


@dataclass
class CheckpointKeeper:
    """One host's checkpoint. Safe to kill at any moment: what was served stays served until its successor is whole."""

    store: ObjectStore
    cache: Path
    local: LocalVersions = field(init=False)

    def __post_init__(self) -> None:
        self.local = LocalVersions(self.cache)

    def current(self) -> Marker | None:
        return self.local.marker()

    def bring(self, wanted: Wanted) -> Held:
        """Have the wanted version here. Raises DeltaError; what was served before then still is.

        StoreError means that the store does not have the version's manifest at all.
        """
        started = time.monotonic()
        with self.local.locked(), refusing_when_full(self.cache):
            link = Link(wanted.uri, _read_wanted(self.store, wanted))
            marker = self.local.marker()
            self.local.remove_unfinished()
            held, problems = self._held(marker, link.manifest)
            if held is not None and marker is not None and held[1].result_digest == link.manifest.result_digest:
                if marker.name != wanted.name:
                    marker = self.local.move_marker(msgspec.structs.replace(marker, name=wanted.name))
                return self._answer(marker, link.manifest, None, started)
            for way in self._ways(link, held, problems):
                try:
                    return self._answer(self._go(way, held, link.manifest), link.manifest, way, started)
                except (BadBase, BadLink, StoreError) as error:
                    problems.append(str(error))
        raise BadLink(f"weights {wanted.name} cannot be rebuilt: {'; '.join(dict.fromkeys(problems))}")

    def _ways(self, link: Link, held: tuple[WeightsFile, VersionManifest] | None, problems: list[str]) -> Iterator[Way]:
        """From what is here and from snapshots; where none of these leads there, from older snapshots too."""
        tried: list[Way] = []
        for digest in [held[1].result_digest, ""] if held else [""]:
            ways, ended = find_ways(link, digest, store_reader(self.store))
            for way in ways:
                if way not in tried:
                    tried.append(way)
                    yield way
            if ended:
                problems.append(ended)

    def _held(
        self, marker: Marker | None, wanted: VersionManifest
    ) -> tuple[tuple[WeightsFile, VersionManifest] | None, list[str]]:
        """What is served, if it is whole. Read in full only where it is what is wanted: else rebuilding reads it."""
        if marker is None:
            return None, []
        try:
            held = self.local.read(marker)
            if held[1].result_digest == wanted.result_digest:
                verify(*held)
        except BadBase as error:
            return None, [str(error)]
        return held, []

    def _answer(self, marker: Marker, manifest: VersionManifest, way: Way | None, started: float) -> Held:
        return Held(
            name=marker.name,
            path=str(self.local.folder(marker)),
            sha256=manifest.sha256,
            result_digest=manifest.result_digest,
            num_bytes=way.num_bytes if way else 0,
            density=_density(way) if way else None,
            from_snapshot=way is not None and way.snapshot is not None,
            seconds=time.monotonic() - started,
        )

    def _go(self, way: Way, held: tuple[WeightsFile, VersionManifest] | None, wanted: VersionManifest) -> Marker:
        self.local.remove_others()
        self.local.require_room(wanted.num_bytes + (0 if self.store.is_local else way.num_bytes))
        with self.local.building() as folder:
            fetched = folder / ".fetched"
            fetched.mkdir()
            base, start, side = self._start(way.snapshot, held, fetched)
            steps = [self._step(link, fetched) for link in way.links]
            with (folder / WEIGHTS).open("wb") as out:
                rebuild(base, start, steps, out)
            self._side_files(way.links, side, wanted, folder)
            shutil.rmtree(fetched)
            sync_folder(folder)
            return self.local.serve(folder, wanted)

    def _start(
        self, snapshot: Link | None, held: tuple[WeightsFile, VersionManifest] | None, fetched: Path
    ) -> tuple[WeightsFile, VersionManifest, Path]:
        """Base weights, their manifest, and the folder that holds the files beside them."""
        if snapshot is None:
            assert held is not None
            marker = self.local.marker()
            assert marker is not None
            return *held, self.local.folder(marker)
        side = fetched / "snapshot"
        side.mkdir()
        for name in snapshot.manifest.files:
            self.store.get_file(f"{snapshot.uri}/{name}", side / name)
        try:
            return open_weights(self._file(snapshot, WEIGHTS, fetched)), snapshot.manifest, side
        except (LayoutError, OSError) as error:
            raise BadBase(f"snapshot {snapshot.manifest.name}: {error}") from error

    def _step(self, link: Link, fetched: Path) -> Step:
        file = self._file(link, DELTA, fetched)
        assert link.manifest.delta is not None
        if not file.is_file():
            raise BadLink(f"delta of {link.manifest.name}: {link.uri}/{DELTA} is missing")
        digest = file_sha256(file)
        if digest != link.manifest.delta.sha256:
            raise BadLink(
                f"delta of {link.manifest.name}: its bytes have digest {digest[:12]}…, expected "
                f"{link.manifest.delta.sha256[:12]}…"
            )
        return open_step(link.manifest, file)

    def _file(self, link: Link, name: str, fetched: Path) -> Path:
        """The store's own file where it is a folder here, else a copy."""
        key = f"{link.uri}/{name}"
        if self.store.is_local:
            return Path(self.store.path(key))
        target = fetched / f"v{link.manifest.version:06d}-{name}"
        self.store.get_file(key, target)
        return target

    def _side_files(self, links: Sequence[Link], start: Path, wanted: VersionManifest, folder: Path) -> None:
        """Configuration and tokenizer: from the newest version that stores them, else from where the way starts."""
        for name, sha256 in wanted.files.items():
            source = start / name
            link = next((one for one in reversed(links) if name in one.manifest.stored), None)
            target = folder / name
            if link is not None:
                source = folder / ".fetched" / name
                self.store.get_file(f"{link.uri}/{name}", source)
            if not source.is_file():
                raise BadLink(f"{wanted.name}: {name} is missing")
            copy_durably(source, target)
            if hashlib.sha256(target.read_bytes()).hexdigest() != sha256:
                raise BadLink(f"{wanted.name}: {name} is damaged")


def _read_wanted(store: ObjectStore, wanted: Wanted) -> VersionManifest:
    manifest = store_reader(store)(wanted.uri)
    if wanted.base_fingerprint and manifest.base_fingerprint not in ("", wanted.base_fingerprint):
        raise WrongModel(
            f"weights {wanted.name} were trained on another base model ({manifest.base_fingerprint[:12]}…): refused"
        )
    if manifest.sha256 != wanted.sha256:
        raise WrongModel(
            f"weights {wanted.name}: {wanted.uri} holds digest {manifest.sha256[:12]}…, expected "
            f"{wanted.sha256[:12]}…: refused"
        )
    return manifest


def _density(way: Way) -> float:
    if way.snapshot is not None:
        return 1.0
    changed = sum(link.manifest.delta.num_changed for link in way.links if link.manifest.delta)
    return min(1.0, changed / max(way.links[-1].manifest.num_words, 1))
