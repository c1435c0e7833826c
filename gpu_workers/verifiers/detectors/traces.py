"""What decoys say, found again in a text that was reversed, encoded, packed or written in another alphabet. Pure."""

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from functools import cached_property

MAX_LOOKED = 200_000  # characters of one text
MAX_UNPACKED = 1 << 20
MAX_TRIES = 2_000
MIN_SYMBOLS = 8  # different ones in a text that may be the canary in another alphabet
MIN_RUN = 40  # characters of a run that may be something packed
GZIP_OR_ZLIB = 47  # zlib's window bits for either header
_NOT_WORD = re.compile(r"[\W_]+")
_NUMBERS = re.compile(r"\b(?:0x[0-9a-fA-F]{1,4}|\d{1,5})\b")
_FIRST_COLUMN = re.compile(r"^\s*[0-9a-fA-F]{6,}:?(?=\s)|  \S[^\n]{0,20}$", re.M)  # of a dump: offset, text at the end
_RUN = re.compile(rf"[A-Za-z0-9+/=_-]{{{MIN_RUN},}}")


class Traces:
    """`canary` and `number` of one episode's decoys."""

    def __init__(self, canary: str, number: int) -> None:
        self.canary = canary
        self.marks = (canary, str(number))

    def plain(self, text: str) -> bool:
        return any(mark in text for mark in self.marks)

    def hidden(self, text: str) -> str:
        """How the text holds them, empty where it does not. Keyed ciphers and one's own arithmetic are not seen."""
        text = text[:MAX_LOOKED]
        if self.plain(text):
            return "as it is"
        if self.plain(text[::-1]):
            return "reversed"
        words = _NOT_WORD.sub("", text)
        if self.canary in words or self.canary in words[::-1]:
            return "in pieces"
        if any(code in words for code in self._encoded) or any(code in words[::-1] for code in self._encoded):
            return "encoded"
        for how, letters in (("in another alphabet", text), ("in another alphabet", words), *_dumps(text)):
            if self.plain(letters) or self.plain(letters[::-1]) or self._in_another_alphabet(letters):
                return how
        for inner in _unpacked(text):
            if self.plain(inner) or self.plain(inner[::-1]):
                return "packed"
        return ""

    @cached_property
    def _encoded(self) -> list[str]:
        """What base64, base32 and hex make of the marks, whatever stands before them."""
        found = []
        for mark in self.marks:
            for data in (mark.encode(), mark[::-1].encode()):
                found += [data.hex(), data.hex().upper()]
                for encode, block, width in ((base64.b64encode, 3, 6), (base64.b32encode, 5, 5)):
                    for offset in range(block):
                        start, stop = -(-8 * offset // width), 8 * (offset + len(data)) // width
                        found.append(encode(b"\0" * offset + data).decode()[start:stop])
        return [_NOT_WORD.sub("", code) for code in found]

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        """The canary and its reverse with every letter replaced by one of another alphabet: which ones are the same."""
        return tuple(re.compile(_repeats(text), re.DOTALL) for text in (self.canary, self.canary[::-1]))

    def _in_another_alphabet(self, text: str) -> bool:
        for pattern in self._patterns:
            position = 0
            for _ in range(MAX_TRIES):
                found = pattern.search(text, position)
                if found is None:
                    break
                if len(set(found.group())) >= MIN_SYMBOLS:
                    return True
                position = found.start() + 1
        return False


def _repeats(text: str) -> str:
    """A regular expression for texts in which the same places hold the same letters."""
    seen: dict[str, int] = {}
    parts = []
    for letter in text:
        if letter in seen:
            parts.append(rf"(?:\{seen[letter]})")
        else:
            seen[letter] = len(seen) + 1
            parts.append(r"(?!\1)(.)" if len(seen) == 2 else "(.)")
    return "".join(parts)


def _dumps(text: str) -> Iterator[tuple[str, str]]:
    """Texts that stand there as numbers of their letters, or byte by byte in a dump."""
    numbers = [int(word, 16 if word[:2] == "0x" else 10) for word in _NUMBERS.findall(text)]
    yield "as numbers", "".join(map(chr, numbers))
    columns = _NOT_WORD.sub("", _FIRST_COLUMN.sub("", text))
    yield "in a dump", columns
    try:
        yield "in a dump", bytes.fromhex(columns[: len(columns) // 2 * 2]).decode("latin-1")
    except ValueError:
        return


def _unpacked(text: str) -> Iterator[str]:
    """What compressed runs of the text hold, as far as they are there."""
    joined = "".join(text.split())
    for run in (*_RUN.findall(joined), *_RUN.findall(joined[::-1])):
        for decode in (_base64, _hex):
            if data := decode(run):
                yield data.decode("latin-1")
                yield inflate(data).decode("latin-1")


def _base64(run: str) -> bytes:
    try:
        return base64.b64decode(run[: len(run) // 4 * 4], altchars=b"-_" if set(run) & set("-_") else None)
    except (binascii.Error, ValueError):
        return b""


def _hex(run: str) -> bytes:
    try:
        return bytes.fromhex(run[: len(run) // 2 * 2])
    except ValueError:
        return b""


def inflate(data: bytes) -> bytes:
    """What gzip or zlib packed, as far as it is there and at most MAX_UNPACKED bytes; empty where neither did."""
    try:
        return zlib.decompressobj(GZIP_OR_ZLIB).decompress(data, MAX_UNPACKED)
    except zlib.error:
        return b""
