"""A safetensors file as bytes: where each tensor lies, whatever its dtype. Read by mapping, never whole."""

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20  # safetensors' own bound


class LayoutError(ValueError):
    """A file that is not whole safetensors; says what is wrong with it."""


@dataclass(frozen=True)
class TensorSpan:
    """One tensor's bytes, [start, stop) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def word_bytes(self) -> int:
        """Size of the unit that changes are counted in: the element's, as far as it is a machine word of 1 to 8."""
        whole, rest = divmod(self.num_bytes, max(self.num_elements, 1))
        return next((size for size in (8, 4, 2) if not rest and whole and whole % size == 0), 1)

    @property
    def num_words(self) -> int:
        return self.num_bytes // self.word_bytes

    @property
    def form(self) -> tuple[str, tuple[int, ...], int]:
        """Only tensors of one form can be compared word by word."""
        return self.dtype, self.shape, self.num_bytes


@dataclass(frozen=True)
class WeightsFile:
    """A mapped file. `header` is everything before the first tensor; `spans` are in the order of the file."""

    header: bytes
    spans: dict[str, TensorSpan]
    data: Bytes

    def tensor(self, name: str) -> Bytes:
        """The bytes of one tensor, not copied."""
        span = self.spans[name]
        return self.data[span.start : span.stop]

    @property
    def num_words(self) -> int:
        return sum(span.num_words for span in self.spans.values())


def open_weights(path: Path) -> WeightsFile:
    """Map a file, for as long as its bytes are used. Raises LayoutError when it is torn, OSError when unreadable."""
    with path.open("rb") as handle:
        if path.stat().st_size < _LENGTH_BYTES:
            raise LayoutError(f"{path} is too short for a safetensors file")
        data = np.frombuffer(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    return WeightsFile(*parse_header(data, str(path)), data)


def parse_header(data: Bytes, source: str) -> tuple[bytes, dict[str, TensorSpan]]:
    """Header and spans; the tensors must lie one after another and fill the file exactly."""
    size = int.from_bytes(data[:_LENGTH_BYTES].tobytes(), "little")
    stop = _LENGTH_BYTES + size
    if size > _MAX_HEADER_BYTES or stop > len(data):
        raise LayoutError(f"{source} is cut short inside its header, or is no safetensors file")
    header = data[:stop].tobytes()
    spans = spans_of(header, source)
    end = max((span.stop for span in spans.values()), default=stop)
    if end != len(data):
        raise LayoutError(f"{source} has {len(data)} bytes, its header says {end}: it is cut short or damaged")
    return header, spans


def spans_of(header: bytes, source: str) -> dict[str, TensorSpan]:
    """The tensors that a header describes, in the order of the file."""
    try:
        fields = json.loads(header[_LENGTH_BYTES:])
        spans = [
            TensorSpan(
                name,
                str(field["dtype"]),
                tuple(int(size) for size in field["shape"]),
                len(header) + int(field["data_offsets"][0]),
                len(header) + int(field["data_offsets"][1]),
            )
            for name, field in fields.items()
            if name != "__metadata__"
        ]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise LayoutError(f"{source}: its header cannot be read ({error})") from error
    spans.sort(key=lambda span: (span.start, span.stop))
    end = len(header)
    for span in spans:
        if span.start != end or span.stop < span.start:
            raise LayoutError(f"{source}: tensor {span.name} does not lie where the one before ends")
        end = span.stop
    return {span.name: span for span in spans}


def make_header(sizes: dict[str, int]) -> bytes:
    """The header of a file of byte tensors, one after another in this order."""
    fields, offset = {}, 0
    for name, size in sizes.items():
        fields[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
