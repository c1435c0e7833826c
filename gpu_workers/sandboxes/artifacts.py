"""The artifact allow-list: which paths of a workspace may leave it. Pure.

A pattern is split at its slashes; `*` and `?` stay within a segment, a segment `**` stands for any number of them.
"""

from collections.abc import Callable, Sequence

ANY_DEPTH = "**"


class AllowList:
    """Patterns as a contract names them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [tuple(pattern.split("/")) for pattern in patterns]

    def takes(self, path: str) -> bool:
        """Whether the file at this path may leave."""
        parts = tuple(path.split("/"))
        return any(_matches(pattern, parts) for pattern in self._patterns)

    def leads(self, path: str) -> bool:
        """Whether a file below this path may leave."""
        parts = tuple(path.split("/"))
        return any(_leads(pattern, parts) for pattern in self._patterns)


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return _glob(pattern, parts, ANY_DEPTH, _segment)


def _leads(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if ANY_DEPTH in pattern[: len(parts) + 1]:
        pattern = pattern[: pattern.index(ANY_DEPTH)]
    elif len(pattern) <= len(parts):
        return False
    return all(_segment(p, part) for p, part in zip(pattern, parts, strict=False))


def _segment(pattern: str, text: str) -> bool:
    return _glob(pattern, text, "*", lambda wanted, found: wanted in ("?", found))


def _glob(pattern: Sequence[str], items: Sequence[str], star: str, same: Callable[[str, str], bool]) -> bool:
    """Whether the items match, where `star` stands for any number of them. Only the last star is ever gone back to,
    so the cost is at most the product of the lengths."""
    at, place = 0, 0
    last, after = -1, 0
    while place < len(items):
        if at < len(pattern) and pattern[at] == star:
            last, after = at, place
            at += 1
        elif at < len(pattern) and same(pattern[at], items[place]):
            at += 1
            place += 1
        elif last >= 0:
            after += 1
            at, place = last + 1, after
        else:
            return False
    return all(item == star for item in pattern[at:])
