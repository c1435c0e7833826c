"""Writing what a version changed: two weights files in, delta.safetensors out. One tensor is in memory at a time."""

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpu_workers.weights.delta.codec import encode_change
from gpu_workers.weights.delta.files import writing
from gpu_workers.weights.delta.layout import WeightsFile, make_header
from gpu_workers.weights.delta.manifest import ChangedTensor, checksum

HEADER_PART = "header"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class WrittenDelta:
    """What the manifest says of a delta file."""

    changed: dict[str, ChangedTensor]
    num_changed: int
    new_header: bool
    sha256: str
    num_bytes: int


def part_name(tensor: str, part: str) -> str:
    """Name inside the delta file. Tensors' names are free text, parts' are not: no two can be the same."""
    return f"{part}:{tensor}"


def checksums_of(weights: WeightsFile) -> dict[str, str]:
    """xxh3-128 of every tensor."""
    return {name: checksum(weights.tensor(name)) for name in weights.spans}


def write_delta(base: WeightsFile, new: WeightsFile, target: Path) -> WrittenDelta:
    """Write `target` whole or not at all. What is in the base and not in the new file is dropped."""
    changed: dict[str, ChangedTensor] = {}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryFile(dir=target.parent) as spool:

        def add(name: str, data: bytes) -> None:
            sizes[name] = len(data)
            spool.write(data)

        new_header = base.header != new.header
        if new_header:
            add(part_name("", HEADER_PART), new.header)
        for name, span in new.spans.items():
            before = base.spans.get(name)
            old = base.tensor(name) if before is not None and before.form == span.form else None
            change = encode_change(old, new.tensor(name), span.word_bytes)
            if change is None:
                continue
            changed[name] = ChangedTensor(
                dtype=span.dtype,
                shape=list(span.shape),
                encoding=change.encoding,
                num_changed=change.num_changed,
                gap_bytes=change.gap_bytes,
            )
            for part, data in change.parts.items():
                add(part_name(name, part), data)
        sha256, num_bytes = _assemble(make_header(sizes), spool, target)
    return WrittenDelta(changed, sum(one.num_changed for one in changed.values()), new_header, sha256, num_bytes)


def _assemble(header: bytes, spool: BinaryIO, target: Path) -> tuple[str, int]:
    digest = hashlib.sha256(header)
    size = len(header)
    spool.seek(0)
    with writing(target) as out:
        out.write(header)
        while chunk := spool.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += out.write(chunk)
    return digest.hexdigest(), size


def copy_durably(source: Path, target: Path) -> None:
    """A copy that is there as a whole, or not at all."""
    with source.open("rb") as handle, writing(target) as out:
        shutil.copyfileobj(handle, out, _CHUNK_BYTES)
