"""manifest.json of a published version: what it is, what it was made against, and how to know that it is right."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import xxhash

from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights.delta.codec import Encoding
from gpu_workers.weights.delta.errors import BadLink
from gpu_workers.weights.delta.layout import Bytes

MANIFEST = "manifest.json"
DELTA = "delta.safetensors"
FORMAT_VERSION = 1
COMPRESSION = "zstd"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


class ChangedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that is not as in the base. Its checksum is in `checksums`."""

    dtype: str
    shape: list[int]
    encoding: Encoding
    num_changed: int  # words
    gap_bytes: int = 0


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The way from the base to this version; `base_uri` is the object key of the base's folder."""

    base_uri: str
    base_version: int
    base_digest: str
    sha256: str  # of delta.safetensors
    num_bytes: int  # its size
    num_changed: int  # words of all tensors
    changed: dict[str, ChangedTensor]  # in the order of the delta file
    new_header: bool = False  # the delta file carries the header of the weights file too
    compression: str = COMPRESSION


class VersionManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `stored` names the files that lie in its folder; a snapshot's hold the whole model."""

    format: int
    name: str  # on every engine
    version: int
    sha256: str  # of the weights file, as a whole
    base_fingerprint: str  # of the base model that was trained
    result_digest: str
    header_checksum: str
    checksums: dict[str, str]  # xxh3-128 of every tensor, changed or not
    num_bytes: int  # of the weights file
    num_words: int  # elements, as far as those are machine words
    files: dict[str, str]  # everything else that belongs to the model: name -> SHA-256
    stored: list[str]
    snapshot: bool
    delta: Delta | None = None


def checksum(data: Bytes | bytes) -> str:
    """xxh3-128 in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data if isinstance(data, bytes) else data.data)


def digest_of(checksums: Mapping[str, str]) -> str:
    """SHA-256 over the sorted (name, checksum) of all tensors."""
    lines = "".join(f"{name}\0{value}\n" for name, value in sorted(checksums.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def decode_manifest(data: bytes, source: str) -> VersionManifest:
    """Raises BadLink for anything that is not a whole manifest of this format."""
    try:
        told = msgspec.json.decode(data)
        found = told.get("format") if isinstance(told, dict) else None
        if found != FORMAT_VERSION:
            raise BadLink(f"{source}: format {found!r} is not {FORMAT_VERSION}: it was published without deltas")
        manifest = msgspec.convert(told, VersionManifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadLink(f"{source} cannot be read ({error})") from error
    if digest_of(manifest.checksums) != manifest.result_digest:
        raise BadLink(f"{source}: its checksums do not add up to its digest")
    for name in [*manifest.files, *manifest.stored]:
        if not _PLAIN_NAME.fullmatch(name):
            raise BadLink(f"{source}: {name!r} is no plain file name")
    for name in manifest.files.keys() & {WEIGHTS, DELTA, MANIFEST}:  # they would be put in place of what was checked
        raise BadLink(f"{source}: {name} is no file beside the weights")
    if manifest.delta is not None and manifest.delta.compression != COMPRESSION:
        raise BadLink(f"{source}: compression {manifest.delta.compression!r} is not known here")
    return manifest


def encode_manifest(manifest: VersionManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest))


def read_local(folder: Path) -> VersionManifest:
    """Of a folder on this host. Raises BadLink."""
    try:
        return decode_manifest((folder / MANIFEST).read_bytes(), str(folder / MANIFEST))
    except OSError as error:
        raise BadLink(f"{folder} holds no readable {MANIFEST} ({error})") from error
