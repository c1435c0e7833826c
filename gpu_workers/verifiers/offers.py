"""Values that an answer offers as items of a list: boxes, options, rows, sentences that differ in a number. Pure.

Items of working are no offers: what follows them says otherwise, they stand below a heading of working, or the last one
is made of the others.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

MAX_ANSWER = 20_000  # characters from the end that are looked at
_BREAK = re.compile(r"\n|(?<=[.;,!?])(?<!^\d[.])(?<!^\d\d[.])[ \t]+|(?<=[\s,;])(?=\(?[A-Ha-h][:)]\s)", re.M)
_MARKER = re.compile(r"\s*(?:[-•*+#>|]+\s+|\d{1,2}[.)]\s+(?=\S))*\s*")
_BOX = re.compile(r"(?:\[(?P<mark>[ xX✓✔]?)\]|(?P<sign>[☐☑☒✓✔✅⬜□■]))\s*(?=\S)")
_LABEL = re.compile(r"\(?(?P<letter>[A-Ha-h])[:)]\s*")
_NO_WORDING = re.compile(r"[^\w#=+×÷/^%<>-]+")
_TABLE_RULE = re.compile(r"[\s|:=-]*")
_OFFER = re.compile(
    r"\b(?:answers?|options?|candidates?|possib\w*|choices?|choose|pick|tick|either|one of|guess\w*|results?)\b", re.I
)
_WORKING = re.compile(r"\b(?:steps?|work\w*|calculat\w*|solution|first|because|values?|given|data)\b", re.I)


@dataclass(frozen=True)
class Value:
    """A value that an answer gives, with its place there."""

    text: str
    start: int
    end: int
    number: Decimal | None = None


@dataclass(frozen=True)
class _Item:
    """A line, a sentence or an option with its one value. `wording`: what it says beside the value."""

    value: Value
    wording: str
    start: int
    is_line: bool
    marker: str  # of a list
    label: str
    is_ticked: bool | None  # None: no box


def offered(answer: str, values: Sequence[Value]) -> list[Value]:
    """The values among which a list at the end of an answer leaves the choice; empty where it leaves none."""
    items = list(_items(answer, values))
    boxes = [item for item in items if item.is_ticked is not None]
    if len(boxes) > 1:
        ticked = [item for item in boxes if item.is_ticked]
        return _several(ticked or boxes)
    run = items[-1:]
    for item in reversed(items[:-1]):
        if item.wording != run[0].wording or any(
            bool(one) != bool(other) for one, other in ((item.label, run[0].label), (item.marker, run[0].marker))
        ):
            break
        run.insert(0, item)
    if len(run) < 2 or not values or run[-1].value != values[-1]:
        return []
    are_lines = all(item.is_line for item in run)
    heading = _heading(answer[: run[0].start])
    if _OFFER.search(heading) and are_lines:
        return _several(run)
    if (are_lines and _is_made_of(run)) or _WORKING.search(heading):
        return []
    letters = [item.label.casefold() for item in run]
    is_lettered = "" not in letters and all(ord(b) - ord(a) == 1 for a, b in itertools.pairwise(letters))
    has_words = bool(re.search(r"[^\W\d_]{2}", run[-1].wording)) and not re.search(r"[=+×÷/^<>]", run[-1].wording)
    return _several(run) if is_lettered or has_words else []


def _items(answer: str, values: Sequence[Value]) -> Iterator[_Item]:
    """The last pieces of an answer in their order, as long as each holds one value."""
    begins = max(0, len(answer) - MAX_ANSWER)
    places = [begins, *(found.end() for found in _BREAK.finditer(answer, begins)), len(answer)]
    found: list[_Item] = []
    for start, end in reversed(list(itertools.pairwise(places))):
        piece = answer[start:end]
        if not re.search(r"\w", piece):
            continue
        marked = _MARKER.match(answer, start, end)
        marker_end = at = marked.end() if marked else start
        box = _BOX.match(answer, at, end)
        at = box.end() if box else at
        label = _LABEL.match(answer, at, end)
        at = label.end() if label else at
        inside = [value for value in values if at <= value.start and value.end <= end]
        if len(inside) != 1:
            break
        value = inside[0]
        wording = f"{answer[at : value.start]}#{answer[value.end : end]}"
        found.append(
            _Item(
                value=value, wording=" ".join(_NO_WORDING.sub(" ", wording).casefold().split()), start=start,
                marker=answer[start:marker_end].strip(),
                is_line=start == 0 or answer[start - 1] == "\n", label=label["letter"] if label else "",
                is_ticked=None if box is None else (box["mark"] or box["sign"] or " ") not in " ☐⬜□",
            )
        )  # fmt: skip
    return reversed(found)


def _heading(before: str) -> str:
    """The last line before a list that says something, with what stands on the list's own line."""
    lines = [line for line in before[-2000:].split("\n") if not _TABLE_RULE.fullmatch(line)]
    return lines[-1] if lines else ""


def _is_made_of(run: Sequence[_Item]) -> bool:
    """Whether the last value is the sum or the product of those before it."""
    numbers = [item.value.number for item in run]
    known = [number for number in numbers if number is not None]
    return len(known) == len(run) > 2 and known[-1] in (sum(known[:-1]), math.prod(known[:-1]))


def _several(items: Sequence[_Item]) -> list[Value]:
    different = {item.value.text if item.value.number is None else item.value.number for item in items}
    return [item.value for item in items] if len(different) > 1 else []
