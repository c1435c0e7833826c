"""Whether an answer commits itself to one value, or offers several that an extractor may choose among. Pure.

The values at the end of an answer are alternatives where nothing but a separator, "or" or "and" stands between them.
Working, dates, units, equations and ranges before a conclusion are none.
"""

import re
from collections.abc import Sequence
from decimal import Decimal

from gpu_workers.verifiers.offers import Value, offered

MAX_GAP = 60  # characters between two values
MAX_RUN = 100  # values that are looked at
_MARKUP = re.compile(r"\\(?:text|textbf|mathrm|boxed|fbox|quad|,|;|!| )|[$*`_{}()\[\]\"'\\]")
_UNIT = r"(?:\s?(?P<unit>%|[^\W\d_]{1,12}|°\w?|[$€£¥]))?"
_MAYBE = r"(?:\s*\b(?:maybe|perhaps|possibly|even|else|rather|alternatively|at (?:least|most)|it is|it's)\b,?){0,3}"
_OR = re.compile(rf"{_UNIT}\s*,?\s*{_MAYBE}\s*\b(?:or|otherwise|alternatively)\b\s*,?{_MAYBE}\s*[-+]?[$€£¥]?\s*", re.I)
_SEPARATOR = re.compile(rf"{_UNIT}\s*(?:[,;|/]|,?\s*(?:\band\b(?:\s*/\s*or\b)?|&))\s*[-+]?[$€£¥]?\s*", re.I)
_LINE = re.compile(r"\s*\n\s*(?:[-•+]|\d+[.)])?\s*")
_BOLD = re.compile(r"\s*\*\*\s+\*\*\s*")
_RANGE = re.compile(r"\s*(?:-|–|—|\bto\b|\.\.\.?|…)\s*", re.I)
_UNIT_BEHIND = re.compile(_UNIT)
_MONTH = re.compile(
    r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)\w{0,6}\.?\s*\Z", re.I
)  # a day and a year follow
_DATE = re.compile(r"\b\d{4}([-/.])\d{1,2}\1\d{1,2}\b|\b\d{1,2}([-/.])\d{1,2}\2\d{4}\b")


def alternatives(answer: str, values: Sequence[Value]) -> list[str]:
    """The texts among which the end of an answer leaves the choice; empty where it commits itself to its last value.

    `values`: all in order of their places.
    """
    if listed := offered(answer, values[-MAX_RUN:]):
        return [value.text for value in listed]
    run = list(values[-1:])
    how: list[str] = []  # what stands between them
    for value in reversed(values[-MAX_RUN:-1]):
        gap = answer[value.end : run[0].start]
        kind = _kind(answer, value, run[0], gap)
        if not kind:
            break
        run.insert(0, value)
        how.insert(0, kind)
    if len(run) < 2 or any(date.start() <= run[-1].start < date.end() for date in _DATE.finditer(answer)):
        return []
    if set(how) == {"line"}:  # lines of working are no alternatives, unless there is nothing else
        rest = answer[: run[0].start] + answer[run[-1].end :]
        if re.search(r"\w", rest):
            return []
    if how == ["range"] and not _is_range(run):
        return []
    if how == ["/"] and _MONTH.search(answer[: run[0].start]):
        return []
    different = _different(answer, run, how)
    return [value.text for value in run] if different else []


def _kind(answer: str, one: Value, other: Value, gap: str) -> str:
    """What stands between two values: or, separator, line, range, /; empty where it is something else."""
    if len(gap) > MAX_GAP:
        return ""
    bare = _MARKUP.sub(" ", gap)
    if _BOLD.fullmatch(gap):
        return "separator"
    if "\n" in gap and _LINE.fullmatch(bare):
        return "line"
    if "\n" in gap.strip():
        return ""
    if _OR.fullmatch(bare):
        return "or"
    if bare.strip() == "/":
        return "/"
    if "," in gap and _MONTH.search(answer[: one.start]) and re.fullmatch(r"\d{4}", other.text):
        return ""  # July 20, 1969
    if _SEPARATOR.fullmatch(bare):
        return "separator"
    if gap.isspace() and not re.fullmatch(r"\d{3}(?:\.\d+)?", other.text) and not _MONTH.search(answer[: one.start]):
        return "separator"  # and no thousands
    return "range" if _RANGE.fullmatch(bare) else ""


def _is_range(run: Sequence[Value]) -> bool:
    first, last = run[0].number, run[-1].number
    return first is not None and last is not None and first < last


def _different(answer: str, run: Sequence[Value], how: Sequence[str]) -> bool:
    """Whether they are several values, not one in several forms: rounded, in per cent, in another unit, a fraction."""
    numbers = [value.number for value in run]
    if any(number is None for number in numbers):
        return len({value.text.casefold() for value in run}) > 1
    forms: list[Decimal] = [number for number in numbers if number is not None]
    if "/" in how and set(how) != {"/"}:  # "1/2 or 0.5"
        forms, index = [], 0
        while index < len(run):
            number, below = numbers[index], numbers[index + 1] if index < len(how) and how[index] == "/" else None
            assert number is not None
            forms.append(number / below if below else number)
            index += 2 if below is not None else 1
    last = forms[-1]
    others = [number for number in forms[:-1] if not _same(number, last)]
    if not others:
        return False
    if len(run) == 2 and set(how) <= {"or", "separator"}:
        units = [_unit(answer, value) for value in run]
        if all(units) and units[0] != units[1]:
            return False  # 2 hours or 120 minutes
    return True


def _unit(answer: str, value: Value) -> str:
    found = _UNIT_BEHIND.match(answer, value.end)
    unit = (found["unit"] or "") if found else ""
    return "" if unit.casefold() in ("or", "and", "to", "maybe", "perhaps", "possibly") else unit.casefold().rstrip("s")


def _same(one: Decimal, other: Decimal) -> bool:
    """Equal, also where one is the other rounded, or in per cent."""
    for left, right in ((one, other), (other, one)):
        exponent = right.as_tuple().exponent
        if left == right or left * 100 == right or (isinstance(exponent, int) and _rounded(left, -exponent) == right):
            return True
        if abs(left - right) <= abs(right) * Decimal("0.005") and left.as_tuple().exponent != exponent:
            return True
    return False


def _rounded(number: Decimal, places: int) -> Decimal:
    return round(number, max(0, places))
