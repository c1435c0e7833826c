"""Text of others made safe for a terminal: nothing in it moves the cursor, sets titles, hides or reorders."""

import unicodedata

_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # controls, formats (bidi, tags), surrogates, separators
_JOINERS = "\u200c\u200d"  # needed by scripts and emoji; they hide nothing


def printable(text: object, *, lines: bool = False) -> str:
    """The text with control and format characters written out, e.g. `\\x1b`. `lines`: line breaks and tabs stay."""
    value = str(text)
    if value.isascii() and value.isprintable():
        return value
    kept = f"{_JOINERS}\n\t" if lines else _JOINERS
    return "".join(
        char if char in kept or unicodedata.category(char) not in _ESCAPED else _written_out(char) for char in value
    )


def _written_out(char: str) -> str:
    number = ord(char)
    if char in "\n\r\t":
        return repr(char)[1:-1]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
