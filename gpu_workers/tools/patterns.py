"""Whether a regular expression can take exponential time: an unbounded repetition inside another one. Pure."""

import re
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's own parser of patterns
from typing import Any

_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
MANY = 64  # as good as unbounded


def backtracks(pattern: str) -> bool:
    """True also where the pattern cannot be read: it cannot be matched either."""
    try:
        return _nested(_parser.parse(pattern), inside=False)
    except (re.error, RecursionError, OverflowError):
        return True


def _nested(items: Any, *, inside: bool) -> bool:
    for code, argument in items:
        repeated = code in _REPEATS and argument[1] >= MANY
        if repeated and inside:
            return True
        if any(_nested(part, inside=inside or repeated) for part in _parts(code, argument)):
            return True
    return False


def _parts(code: Any, argument: Any) -> list[Any]:
    """Patterns inside one."""
    if code in _REPEATS or code is _constants.POSSESSIVE_REPEAT:
        return [argument[2]]
    if code is _constants.SUBPATTERN:
        return [argument[3]]
    if code is _constants.BRANCH:
        return list(argument[1])
    if code in (_constants.ASSERT, _constants.ASSERT_NOT):
        return [argument[1]]
    if code is _constants.ATOMIC_GROUP:
        return [argument]
    if code is _constants.GROUPREF_EXISTS:
        return [part for part in argument[1:] if part is not None]
    return []
