"""Rebuilding a weights file from a base and deltas: each tensor is checked before, between, after; then all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gpu_workers.weights.delta.codec import Change, CodecError, apply_change
from gpu_workers.weights.delta.encode import HEADER_PART, part_name
from gpu_workers.weights.delta.errors import BadBase, BadLink
from gpu_workers.weights.delta.files import sync
from gpu_workers.weights.delta.layout import Bytes, LayoutError, TensorSpan, WeightsFile, open_weights, spans_of
from gpu_workers.weights.delta.manifest import VersionManifest, checksum, digest_of

_PARTS = {"sparse": ("gaps", "values"), "xor": ("xor",), "full": ("full",)}


@dataclass(frozen=True)
class Step:
    """One version's delta, mapped; its file's SHA-256 was checked."""

    manifest: VersionManifest
    file: WeightsFile

    def change(self, name: str) -> Change | None:
        """Raises BadLink when the file lacks a part."""
        assert self.manifest.delta is not None
        told = self.manifest.delta.changed.get(name)
        if told is None:
            return None
        parts = {part: self._part(name, part) for part in _PARTS[told.encoding]}
        return Change(told.encoding, told.num_changed, told.gap_bytes, parts)

    def header(self) -> bytes | None:
        assert self.manifest.delta is not None
        return self._part("", HEADER_PART) if self.manifest.delta.new_header else None

    def _part(self, tensor: str, part: str) -> bytes:
        key = part_name(tensor, part)
        if key not in self.file.spans:
            raise BadLink(f"delta of {self.manifest.name} lacks {key!r}")
        return self.file.tensor(key).tobytes()


def open_step(manifest: VersionManifest, path: Path) -> Step:
    """Raises BadLink when the delta file is torn."""
    try:
        return Step(manifest, open_weights(path))
    except (LayoutError, OSError) as error:
        raise BadLink(f"delta of {manifest.name}: {error}") from error


def rebuild(base: WeightsFile, start: VersionManifest, steps: Sequence[Step], out: BinaryIO) -> None:
    """Write the version that `steps` lead to from `base`, which should be `start`. Ends synced and checked.

    Raises BadBase when the base's bytes are not `start`'s, BadLink when a delta does not give what it promises.
    """
    header = next((found for step in reversed(steps) if (found := step.header()) is not None), base.header)
    final = steps[-1].manifest if steps else start
    if checksum(header) != final.header_checksum:
        raise (BadLink if steps else BadBase)(f"the header of {final.name} is not what its manifest says")
    try:
        spans = spans_of(header, final.name)
    except LayoutError as error:
        raise BadLink(str(error)) from error
    out.write(header)
    checksums: dict[str, str] = {}
    for span in spans.values():
        tensor, checksums[span.name] = _rebuild_tensor(span, base, start, steps)
        out.write(tensor.data)
    if digest_of(checksums) != final.result_digest:
        raise BadLink(f"{final.name} does not add up: its tensors are not those that its manifest names")
    sync(out)


def _rebuild_tensor(
    span: TensorSpan, base: WeightsFile, start: VersionManifest, steps: Sequence[Step]
) -> tuple[Bytes, str]:
    """The tensor and its checksum."""
    changes = [(step, change) for step in steps if (change := step.change(span.name)) is not None]
    tensor: Bytes | None = None
    found = ""
    if span.name in base.spans:
        tensor = base.tensor(span.name)
        found = checksum(tensor)
        if found != start.checksums.get(span.name):
            raise BadBase(f"tensor {span.name} of {start.name} is damaged where the change starts from")
        tensor = np.array(tensor) if changes else tensor
    for step, change in changes:
        tensor, found = _change_tensor(span, tensor, step, change)
    if tensor is None or len(tensor) != span.num_bytes:
        final = steps[-1].manifest if steps else start
        raise BadLink(f"{final.name} brings no tensor {span.name} of {span.num_bytes} bytes")
    return tensor, found


def _change_tensor(span: TensorSpan, tensor: Bytes | None, step: Step, change: Change) -> tuple[Bytes, str]:
    told = step.manifest.delta.changed[span.name] if step.manifest.delta else None
    # A form that only a later step gives it: that step then brings the tensor in full.
    same = told is not None and (told.dtype, tuple(told.shape)) == (span.dtype, span.shape)
    if not same:
        return np.empty(0, np.uint8), ""
    try:
        tensor = apply_change(tensor, change, span.num_bytes, span.word_bytes)
    except CodecError as error:
        raise BadLink(f"delta of {step.manifest.name}, tensor {span.name}: {error}") from error
    found = checksum(tensor)
    if found != step.manifest.checksums.get(span.name):
        raise BadLink(f"delta of {step.manifest.name} gives another tensor {span.name} than its manifest says")
    return tensor, found


def verify(weights: WeightsFile, manifest: VersionManifest) -> None:
    """Read every byte. Raises BadBase naming what is not as the manifest says."""
    if checksum(weights.header) != manifest.header_checksum:
        raise BadBase(f"the header of {manifest.name} is damaged")
    for name in weights.spans:
        if checksum(weights.tensor(name)) != manifest.checksums.get(name):
            raise BadBase(f"tensor {name} of {manifest.name} is damaged")
    if weights.spans.keys() != manifest.checksums.keys():
        raise BadBase(f"{manifest.name} lacks tensors that its manifest names")
