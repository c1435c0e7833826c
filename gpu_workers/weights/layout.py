"""What tensors a safetensors file holds and where, read from its header, and the buckets in which they are sent."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_workers.contracts.seams import Bucket
from gpu_workers.weights.adapter import InstallError

BUCKET_BYTES = 256 * 2**20
_MAX_HEADER_BYTES = 100 * 2**20  # safetensors' own bound
# safetensors' names of what torch calls otherwise, and their bytes an element
_DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: `start` and `stop` in bytes from the beginning of the file."""

    name: str
    dtype: str  # as torch writes it
    shape: tuple[int, ...]
    start: int
    stop: int
    item_bytes: int

    @property
    def form(self) -> tuple[str, tuple[int, ...]]:
        return self.dtype, self.shape


def read_layout(file: Path) -> dict[str, TensorEntry]:
    """Entries by name. Raises InstallError when the header cannot be read or does not fit the file."""
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if not 2 <= length <= _MAX_HEADER_BYTES:
                raise ValueError(f"its header would be {length} bytes long")
            header = json.loads(handle.read(length))
        entries = {name: _entry(name, row, 8 + length) for name, row in header.items() if name != "__metadata__"}
        end = max((entry.stop for entry in entries.values()), default=0)
        if end != file.stat().st_size:
            raise ValueError(f"its tensors end at byte {end}, the file has {file.stat().st_size}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InstallError(f"{file} is no readable safetensors file: {error}") from error
    return entries


def _entry(name: str, row: Mapping[str, object], data_start: int) -> TensorEntry:
    kind = str(row["dtype"])
    if kind not in _DTYPES:
        raise ValueError(f"tensor {name} has dtype {kind}, which cannot be sent")
    dtype, item_bytes = _DTYPES[kind]
    shape, (start, stop) = tuple(map(int, row["shape"])), map(int, row["data_offsets"])  # type: ignore[call-overload]
    size = item_bytes
    for length in shape:
        size *= length
    if stop - start != size:
        raise ValueError(f"tensor {name} has {stop - start} bytes, {kind} of shape {list(shape)} takes {size}")
    return TensorEntry(name, dtype, shape, data_start + start, data_start + stop, item_bytes)


def check_same_layout(what: str, ours: Mapping[str, TensorEntry], base: Mapping[str, TensorEntry]) -> None:
    """Raises InstallError when names, dtypes or shapes are not those of the base model.

    An engine would not always say: SGLang passes over a name that its model does not have.
    """
    missing, unknown = sorted(base.keys() - ours.keys()), sorted(ours.keys() - base.keys())
    problem = ""
    if missing or unknown:
        parts = [f"{verb} {', '.join(names[:3])}" for verb, names in (("lack", missing), ("add", unknown)) if names]
        problem = " and ".join(parts)
    else:
        other = next((name for name in ours if ours[name].form != base[name].form), "")
        if other:
            problem = f"have {other} as {_said(ours[other])} instead of {_said(base[other])}"
    if problem:
        raise InstallError(f"{what} are not weights of the base model: they {problem}; refused")


def _said(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"


def plan_buckets(layout: Mapping[str, TensorEntry], bucket_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """All tensors, each once; a bucket exceeds the bound only to hold one tensor that does.

    Wide elements first, so that each tensor lies at a multiple of its element's size.
    """
    ordered = sorted(layout.values(), key=lambda entry: (-entry.item_bytes, entry.start))
    return [_bucket(entries) for entries in _grouped(ordered, bucket_bytes)]


def _grouped(entries: list[TensorEntry], bucket_bytes: int) -> Iterator[list[TensorEntry]]:
    group, size = list[TensorEntry](), 0
    for entry in entries:
        num_bytes = entry.stop - entry.start
        if group and size + num_bytes > bucket_bytes:
            yield group
            group, size = [], 0
        group.append(entry)
        size += num_bytes
    if group:
        yield group


def _bucket(entries: list[TensorEntry]) -> Bucket:
    return Bucket(
        names=tuple(entry.name for entry in entries),
        dtypes=tuple(entry.dtype for entry in entries),
        shapes=tuple(entry.shape for entry in entries),
        num_bytes=sum(entry.stop - entry.start for entry in entries),
    )
