"""One tensor's change as compressed bytes and back, exact to the bit for any dtype.

    sparse   the changed words' places as gaps, and their new values: applying it twice changes nothing more
    xor      old ^ new of every word
    full     the new words
Words are the elements' bytes as unsigned integers. All are stored byte plane by byte plane and compressed by zstd.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from gpu_workers.weights.delta.layout import Bytes

_LEVEL = 1  # higher ones cost several times the time for some percent
_SMALL_BYTES = 1 << 16  # for a tensor up to this size every encoding is tried
_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Encoding(StrEnum):
    SPARSE = "sparse"
    XOR = "xor"
    FULL = "full"


class CodecError(ValueError):
    """Bytes that are not the change of this tensor."""


@dataclass(frozen=True)
class Change:
    """How one tensor differs. `gap_bytes` is the width of a gap (sparse only); `parts` are named zstd frames."""

    encoding: Encoding
    num_changed: int
    gap_bytes: int
    parts: dict[str, bytes]

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.parts.values()))


def encode_change(old: Bytes | None, new: Bytes, word_bytes: int) -> Change | None:
    """The smallest encoding that was tried; None when nothing changed. `old` None: there is nothing to compare with.

    Sparse is tried always, xor where that takes more than a 64th of the tensor, full where more than half of the words
    changed; all of them for a small tensor.
    """
    new_words = _words(new, word_bytes)
    if old is None:
        return Change(Encoding.FULL, len(new_words), 0, {"full": _pack(new_words)})
    old_words = _words(old, word_bytes)
    places = np.flatnonzero(old_words != new_words)
    if not len(places):
        return None
    tried = [_sparse(places, new_words)]
    if len(new) <= _SMALL_BYTES or tried[0].num_bytes > len(new) // 64:
        tried.append(Change(Encoding.XOR, len(places), 0, {"xor": _pack(old_words ^ new_words)}))
    if len(new) <= _SMALL_BYTES or 2 * len(places) > len(new_words):
        tried.append(Change(Encoding.FULL, len(places), 0, {"full": _pack(new_words)}))
    return min(tried, key=lambda change: change.num_bytes)


def apply_change(old: Bytes | None, change: Change, num_bytes: int, word_bytes: int) -> Bytes:
    """The new tensor; `old` may be changed in place. Raises CodecError."""
    if change.encoding is Encoding.FULL:
        return _unpack(change.parts["full"], num_bytes, word_bytes)
    if old is None or len(old) != num_bytes:
        raise CodecError(f"{change.encoding} changes {num_bytes} bytes, there are {0 if old is None else len(old)}")
    words = _words(old, word_bytes)
    if change.encoding is Encoding.XOR:
        words ^= _words(_unpack(change.parts["xor"], num_bytes, word_bytes), word_bytes)
        return old
    width = change.gap_bytes
    if width not in _WORDS or change.num_changed < 0:
        raise CodecError(f"{change.num_changed} gaps of {width} bytes are no gaps")
    gaps = _words(_unpack(change.parts["gaps"], change.num_changed * width, width), width)
    values = _unpack(change.parts["values"], change.num_changed * word_bytes, word_bytes)
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if len(places) and (places[-1] >= len(words) or (gaps > len(words)).any()):
        raise CodecError(f"a change lies at word {places[-1]} of {len(words)}")
    words[places] = _words(values, word_bytes)
    return old


def _sparse(places: NDArray[np.intp], words: NDArray[np.unsignedinteger[Any]]) -> Change:
    gaps = np.diff(places, prepend=-1) - 1
    width = next(size for size in _WORDS if int(gaps.max()) < 1 << 8 * size)
    parts = {"gaps": _pack(gaps.astype(_WORDS[width])), "values": _pack(words[places])}
    return Change(Encoding.SPARSE, len(places), width, parts)


def _words(data: Bytes, size: int) -> NDArray[np.unsignedinteger[Any]]:
    return data.view(_WORDS[size])


def _pack(words: NDArray[np.unsignedinteger[Any]]) -> bytes:
    planes = np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(planes.data)


def _unpack(frame: bytes, num_bytes: int, word_bytes: int) -> Bytes:
    """Never more than `num_bytes`, whatever the frame says of itself."""
    try:
        told = zstandard.get_frame_parameters(frame).content_size if num_bytes else 0
        if told != num_bytes:
            raise CodecError(f"a part unfolds to {told} bytes, not to {num_bytes}")
        data = zstandard.ZstdDecompressor().decompress(frame, max_output_size=num_bytes) if num_bytes else b""
    except zstandard.ZstdError as error:
        raise CodecError(f"a part cannot be unfolded ({error})") from error
    planes = np.frombuffer(data, np.uint8).reshape(word_bytes, -1)
    return planes.T.copy().reshape(-1)  # writable, also where the words are bytes
