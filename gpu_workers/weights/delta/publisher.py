"""The trainer's side: a saved model folder becomes the next version of a chain, as a delta and sometimes as a whole."""

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta.encode import checksums_of, write_delta
from gpu_workers.weights.delta.layout import WeightsFile, open_weights
from gpu_workers.weights.delta.manifest import (
    DELTA,
    FORMAT_VERSION,
    MANIFEST,
    Delta,
    VersionManifest,
    checksum,
    digest_of,
    encode_manifest,
)

WORTHWHILE = 0.5  # a delta larger than this share of the model is published as a snapshot instead


class Saved(Protocol):
    """What a saved model folder says of itself: its version's name and number, its weights file, its base model."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def sha256(self) -> str: ...
    @property
    def base_fingerprint(self) -> str: ...


@dataclass(frozen=True)
class _Previous:
    """The version that the next delta starts from, its weights on this host."""

    uri: str
    manifest: VersionManifest
    weights: Path


class DeltaPublisher:
    """One chain: one attempt of one trainer. Its first version is a snapshot, and then every `snapshot_every`-th.

    `work` is a folder of this chain's own, on the disk of the folders that are sealed: it keeps the weights of the
    version before, one copy. Memory is bounded by the largest tensor.
    """

    def __init__(self, work: Path, snapshot_every: int) -> None:
        if snapshot_every < 1:
            raise ValueError(f"snapshot_every is {snapshot_every}: 1 (every version whole) or more")
        self._work, self._every = work, snapshot_every
        self._previous: _Previous | None = None
        self._since_snapshot = 0

    def seal(self, folder: Path, saved: Saved, uri: str, *, whole: bool = False) -> VersionManifest:
        """Turn a saved model folder into what is to be stored below the key `uri`; its manifest.json is written last.

        Unless this version is a snapshot, as it is with `whole`, files that are as they were go, the weights first.
        """
        kept = self._keep(folder / WEIGHTS)
        weights = open_weights(kept)
        previous = self._previous if self._previous and self._previous.weights.is_file() else None
        delta = self._delta(previous, weights, folder / DELTA) if previous else None
        snapshot = whole or delta is None or self._since_snapshot + 1 >= self._every or _too_large(delta, weights)
        manifest = self._manifest(folder, saved, weights, delta, snapshot=snapshot)
        if previous is not None and not snapshot:
            manifest = _drop_unchanged(folder, manifest, previous.manifest)
        (folder / MANIFEST).write_bytes(encode_manifest(manifest))
        self._since_snapshot = 0 if snapshot else self._since_snapshot + 1
        self._previous = _Previous(uri, manifest, kept)
        if previous is not None:
            previous.weights.unlink()
        return manifest

    def _keep(self, weights: Path) -> Path:
        """The same file under a name of ours: nothing is copied."""
        self._work.mkdir(parents=True, exist_ok=True)
        kept = self._work / f"{uuid.uuid4().hex}.safetensors"
        try:
            kept.hardlink_to(weights)
        except OSError:  # another disk
            shutil.copyfile(weights, kept)
        return kept

    def _delta(self, previous: _Previous, weights: WeightsFile, target: Path) -> Delta:
        written = write_delta(open_weights(previous.weights), weights, target)
        return Delta(
            base_uri=previous.uri,
            base_version=previous.manifest.version,
            base_digest=previous.manifest.result_digest,
            sha256=written.sha256,
            num_bytes=written.num_bytes,
            num_changed=written.num_changed,
            changed=written.changed,
            new_header=written.new_header,
        )

    def _manifest(
        self, folder: Path, saved: Saved, weights: WeightsFile, delta: Delta | None, *, snapshot: bool
    ) -> VersionManifest:
        checksums = checksums_of(weights)
        beside = {
            file.name: file_sha256(file)
            for file in sorted(folder.iterdir())
            if file.is_file() and file.name not in (WEIGHTS, DELTA, MANIFEST)
        }
        return VersionManifest(
            format=FORMAT_VERSION,
            name=saved.name,
            version=saved.version,
            sha256=saved.sha256,
            base_fingerprint=saved.base_fingerprint,
            result_digest=digest_of(checksums),
            header_checksum=checksum(weights.header),
            checksums=checksums,
            num_bytes=len(weights.data),
            num_words=weights.num_words,
            files=beside,
            stored=sorted([*beside, WEIGHTS, *([DELTA] if delta else [])]),
            snapshot=snapshot,
            delta=delta,
        )


def _too_large(delta: Delta, weights: WeightsFile) -> bool:
    return delta.num_bytes > WORTHWHILE * len(weights.data)


def _drop_unchanged(folder: Path, manifest: VersionManifest, previous: VersionManifest) -> VersionManifest:
    dropped = {WEIGHTS} | {name for name, sha256 in manifest.files.items() if previous.files.get(name) == sha256}
    for name in dropped:
        (folder / name).unlink()
    return msgspec.structs.replace(manifest, stored=[name for name in manifest.stored if name not in dropped])
