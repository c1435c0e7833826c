"""JSON from outside: what PostgreSQL cannot store or the standard does not know is refused with its reason."""

import json
import math
from typing import Any

MAX_NUMBER_DIGITS = 300
MAX_DEPTH = 100


class StrictJsonError(ValueError):
    """Text that is not usable JSON; says what and where."""


def loads(text: str | bytes) -> Any:
    """The value of a text. Refuses doubled names, NaN, infinity, endless numbers, NUL, half surrogates and depth."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=_refuse_constant,
            parse_int=_parse_int,
            parse_float=_parse_float,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if "\n" in error.doc.strip() else ""  # of one line, the caller knows which
        raise StrictJsonError(f"not JSON: {error.msg} at {line}column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise StrictJsonError(f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise StrictJsonError("nested too deeply") from error
    _check_text(value)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(name for name in made if sum(name == other for other, _ in pairs) > 1)
        raise StrictJsonError(f"names {twice[:100]!r} twice in one object")
    return made


def _refuse_constant(name: str) -> Any:
    raise StrictJsonError(f"{name} is not JSON: use a number or null")


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise StrictJsonError(f"a number has {len(digits)} digits; at most {MAX_NUMBER_DIGITS} are taken")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise StrictJsonError(f"no number that can be stored: {digits[:40]} is out of range")
    return value


def _check_text(value: Any) -> None:
    """Every string and key, and how deep they lie; iterative, so that no depth can exhaust the stack."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise StrictJsonError(f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(item, str):
            _check_string(item)
        elif isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]


def _check_string(text: str) -> None:
    if "\x00" in text:
        raise StrictJsonError(f"holds a NUL character, which cannot be stored, after {text.split(chr(0))[0][-30:]!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise StrictJsonError(f"holds half a surrogate pair (\\u{ord(text[error.start]):04x})") from error
