"""JSON from outside: what PostgreSQL cannot store or the standard does not know is refused with its reason."""

import json
from typing import Any

MAX_NUMBER_DIGITS = 300


class StrictJsonError(ValueError):
    """Text that is not usable JSON; says what and where."""


def loads(text: str | bytes) -> Any:
    """The value of a JSON text. Refuses NaN, infinities, endless numbers, NUL, half surrogates and deep nesting."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if "\n" in error.doc.strip() else ""  # of one line, the caller knows which
        raise StrictJsonError(f"not JSON: {error.msg} at {line}column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise StrictJsonError("nested too deeply") from error
    _check_text(value)
    return value


def _refuse_constant(name: str) -> Any:
    raise StrictJsonError(f"{name} is not JSON: use a number or null")


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise StrictJsonError(f"a number has {len(digits)} digits; at most {MAX_NUMBER_DIGITS} are taken")
    return int(digits)


def _check_text(value: Any) -> None:
    """Every string and key; iterative, since nesting is bounded only by the parser."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _check_string(item)
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item


def _check_string(text: str) -> None:
    if "\x00" in text:
        raise StrictJsonError(f"holds a NUL character, which cannot be stored, after {text.split(chr(0))[0][-30:]!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StrictJsonError(f"holds half a surrogate pair (\\u{ord(text[error.start]):04x})") from error
