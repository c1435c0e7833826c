"""Answers that offer several numbers: by case, label, row, equation, in words, one correction after another.

Pure. What is worked out of the numbers before it, totals and conclusions are no offers.
"""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import combinations, pairwise

from gpu_workers.verifiers.claims import TAKEN_BACK, Claim
from gpu_workers.verifiers.offers import Value

MAX_LISTED = 200  # values from the end that are looked at
_SENTENCE = re.compile(r"\n|(?<=[.;!?])\s+")
_CLAUSE = re.compile(
    r"\n|(?<=[.;!?])\s+|,\s+(?=(?:but |and |or )?(?:if|when|in case|assuming|otherwise|else|unless)\b)", re.I
)
_CASE = re.compile(
    r"\W*(?:\w{1,8}\W+){0,2}(?:if|in case|assuming|supposing|otherwise|else|unless|under|on (?:the|one|another)"
    r"|case|when|provided|read as|taken as)\b", re.I,
)  # fmt: skip
_WORKING = re.compile(r"\d\s*(?:[+×÷·*^]|\\times|\\cdot|\\div|[-−/])\s*\d|\w\s*=\s*\d[\d.,]*\s*=")
_ROW = re.compile(r"\s*\|.*\|\s*")
_FINAL = re.compile(r"\b(?:total|answer|result|final\w*|altogether|overall|conclusion|therefore|thus|hence|so)\b", re.I)
_LABELLED = re.compile(
    r"(?:[-•*>]\s+|\d{1,2}[.)]\s+)?(?P<label>[^\W\d][^\n\d:=]{0,40}?)\s*(?::|=|->|→)\s*[$€£*(\\]*\s*(?P<number>\S+)"
)
_LABELLING = re.compile(r"(?P<number>\S+)\s*(?:=|:|->|→|\()\s*(?P<label>[^\W\d][^\d:=,;\n]{0,40}?)\)?")
_SYMBOL = re.compile(
    r"(?<![\w+*/^-])(?P<label>[A-Za-z]\w{0,12})\s{0,9}=[\s$*]{0,20}(?P<number>[-+−]?\d[\d.,]*)"
    r"(?=\s*(?:[$*;,.\n)]|or\b|and\b|\Z))"
)
_CHOSEN = re.compile(
    r"\b(?:since|because|so|therefore|thus|hence|must|reject\w*|discard\w*|only|positive|negative|valid)\b", re.I
)
_MAY_BE = re.compile(
    r"\b(?:possible (?:results?|answers?|values?|totals?|solutions?|sums?)|candidates?|(?:could|might|may) (?:also )?be"
    r"|either(?!\s*[:.,;!])|one of|guess\w*|options?)\b", re.I,
)  # fmt: skip
_OTHERWISE = re.compile(
    r"\b(?:or|maybe|perhaps|alternatively|unless|otherwise|if|possibly|(?:could|might|may)(?: also| well)? be)\b", re.I
)
_TRY = re.compile(
    r"(?:(?<![^\W_])(?P<place>1st|2nd|3rd|\dth|first|second|third|fourth|other|another|alternat\w+|alt|backup|fallback"
    r"|primary|secondary)[\s_-]{1,3})?"
    r"(?<![^\W_])(?:attempt|try|guess|answer|option|candidate|possibility|hypothesis|solution|(?P<other>alternative)"
    r"|choice|response|submission)"
    r"(?P<which>[\s_]{0,3}(?:#|no\.?|number)?[\s_]{0,3}\(?(?:\d{1,2}|[A-H]|one|two|three|four|five)\)?)?"
    r"[\"'*_)\]]{0,4}\s{0,9}(?:[:=\n]|[-=]>|→|[-–—]"
    r"|\b(?:is|was|gives?|yields?|(?:would|could|may|might) be|comes? to)\b)"
    r"[\s*_$\"'(\\{]{0,10}(?P<number>[-+−]?\d)", re.I,
)  # fmt: skip
_NO_TRY = re.compile(r"\b(?:wrong|incorrect|fails?|failed|false|reject\w*|not (?:right|correct|valid))\b|[✗✘❌]", re.I)
_BESIDE = re.compile(r"[$*]{0,4}(?:[ \t]*(?:[,;/|&]|\band\b)[ \t]*|[ \t]+)[$*]{0,4}")
_NOTHING_MORE = re.compile(r"[.$*)]{0,6}[ \t]*(?:\n|\Z)")
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_UNITS = {word: number for number, word in enumerate(_SMALL)}
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_WORD = "|".join([*_TENS, *sorted(_UNITS, key=len, reverse=True)])
_SPELT = rf"(?P<spelt>(?:{_WORD})(?:[\s-](?:{_WORD}))?)"
_SPELT_BEFORE = re.compile(
    rf"\b{_SPELT}\s*(?:,|/)?\s*(?:or|otherwise|alternatively|/|,)\s*(?:else|maybe|perhaps|even)?\s*[$*(]*\Z", re.I
)
_SPELT_BEHIND = re.compile(
    rf"[)$*.]*\s*[,(]?\s*(?:or|otherwise|alternatively)\b[,\s]*(?:else|maybe|perhaps|even|possibly)?\s*{_SPELT}\b", re.I
)


def hedged(answer: str, values: Sequence[Value], made: Sequence[Claim]) -> list[str]:
    """The values among which the answer leaves the choice; empty where it leaves none."""
    if not values:
        return []
    values = values[-MAX_LISTED:]
    for look in (
        _taken_back,
        _by_case,
        _in_rows,
        _labelled,
        _tries,
        _equations,
        _maybe,
        _spelt,
        _after_the_claim,
    ):
        offered = look(answer, values, made)
        if len({value for value, _ in offered}) > 1:
            return [text for _, text in offered]
    return []


Offers = list[tuple[Decimal | None, str]]
Look = Callable[[str, Sequence[Value], Sequence[Claim]], Offers]


def _offers(values: Sequence[Value]) -> Offers:
    return [(value.number, value.text) for value in values]


def _pieces(answer: str, breaks: re.Pattern[str], values: Sequence[Value]) -> list[tuple[int, int, list[Value]]]:
    """Start, end and values of the pieces that hold any."""
    ends = [*(match.span() for match in breaks.finditer(answer)), (len(answer), len(answer))]
    found, start, at = [], 0, 0
    for end, after in ends:
        first = at
        while at < len(values) and values[at].start < end:
            at += 1
        inside = [value for value in values[first:at] if start <= value.start and value.end <= end]
        if inside:
            found.append((start, end, inside))
        start = after
    return found


def _taken_back(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """More than one change of mind about values that nothing works out."""
    places = [match.start() for match in TAKEN_BACK.finditer(answer)]
    bounds = [0, *places, len(answer)]
    last = []
    for start, end in pairwise(bounds):
        inside = [value for value in values if start <= value.start and value.end <= end]
        if inside and not _WORKING.search(answer, start, end):
            last.append(inside[-1])
    different = [value for i, value in enumerate(last) if i == 0 or value.number != last[i - 1].number]
    return _offers(different) if len(different) > 2 else []


def _by_case(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """One value a reading of the question."""
    cases = [
        (start, inside[0])
        for start, end, inside in _pieces(answer, _CLAUSE, values)
        if len(inside) == 1 and _CASE.match(answer, start, end)
    ]
    if len(cases) < 2 or cases[-1][1] != values[-1]:
        return []
    return _offers([value for _, value in cases])


def _in_rows(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """The last rows of a table, one value each."""
    rows: list[Value] = []
    for start, end, inside in reversed(_pieces(answer, re.compile(r"\n"), values)):
        if (
            not _ROW.fullmatch(answer, start, end)
            or len(inside) != 1
            or (not rows and _FINAL.search(answer, start, end))
        ):
            break
        rows.insert(0, inside[0])
    return _offers(rows) if len(rows) > 1 and not _is_worked_out(rows) else []


def _labelled(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """Several results by their names at the end, none of which is called the answer."""
    parts = _pieces(answer, re.compile(r"\n|[;,]\s+|\sand\s"), values)
    run: list[Value] = []
    labels: list[str] = []
    for start, end, inside in reversed(parts):
        text = answer[start:end].strip().rstrip(".!*$)").lstrip("*$ (")
        found = _LABELLED.fullmatch(text) or _LABELLING.fullmatch(text)
        if (
            len(inside) != 1
            or found is None
            or inside[0].text not in found["number"]
            or len(found["label"].strip()) < 2
        ):
            break
        run.insert(0, inside[0])
        labels.insert(0, found["label"].strip())
    if len(run) < 2 or _FINAL.search(labels[-1]) or _is_worked_out(run) or any(map(_is_step, labels)):
        return []
    return _offers(run)


def _tries(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """Answers one after another by number or place, the last of which is the end; none of them is dropped."""
    by_start = {value.start: value for value in values}
    found = [match for match in _TRY.finditer(answer) if match.start("number") in by_start]
    run = [by_start[match.start("number")] for match in found]
    if len(run) < 2 or run[-1] != values[-1] or not any(m["place"] or m["which"] or m["other"] for m in found):
        return []
    between = answer[run[-2].end : run[-1].start]
    if _NO_TRY.search(between) or TAKEN_BACK.search(between) or _WORKING.search(between):
        return []
    return _offers(run[-2:])


def _is_step(label: str) -> bool:
    return bool(re.match(r"\W*(?:(?:step|then|next|given)\b|(?:first|second)\W*\Z)", label, re.I))


def _equations(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """One symbol with several values, the last of which is the answer's, without a reason for the choice."""
    found: dict[str, list[Value]] = {}
    by_start = {value.start: value for value in values}
    for match in _SYMBOL.finditer(answer):
        value = by_start.get(match.start("number"))
        if value is not None and not re.search(r"[-+*/^×·−]\s*\Z", answer[max(0, match.start() - 9) : match.start()]):
            found.setdefault(match["label"], []).append(value)
    for own in found.values():
        if own[-1] == values[-1] and len(own) > 1 and own[-1].number != own[-2].number:
            between = answer[own[-2].end : own[-1].start]
            if not _CHOSEN.search(between) and not TAKEN_BACK.search(between) and not _WORKING.search(between):
                return _offers(own)
    return []


def _maybe(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """A last sentence that speaks of possible values and lists several."""
    start, end, inside = _pieces(answer, _SENTENCE, values)[-1]
    if len(inside) > 1 and _MAY_BE.search(answer, start, inside[-1].start) and not _WORKING.search(answer, start, end):
        return _offers(inside)
    return []


def _spelt(answer: str, values: Sequence[Value], _: Sequence[Claim]) -> Offers:
    """A number in words beside the last one."""
    last = values[-1]
    found = _SPELT_BEFORE.search(answer, max(0, last.start - 60), last.start) or _SPELT_BEHIND.match(
        answer, last.end, last.end + 80
    )
    if found is None or last.number is None:
        return []
    parts = re.split(r"[\s-]", found["spelt"].casefold())
    return [(Decimal(sum(_TENS.get(p, _UNITS.get(p, 0)) for p in parts)), found["spelt"]), (last.number, last.text)]


def _after_the_claim(answer: str, values: Sequence[Value], made: Sequence[Claim]) -> Offers:
    """What is offered beside the claimed answer, in its sentence or the next one."""
    own = [claim.value for claim in made if claim.subject == "answer"]
    if not own:
        return []
    others = [value for value in values if value.start >= own[-1].end and value.number != own[-1].number]
    if others and others[0].start - own[-1].end < 80:
        between = answer[own[-1].end : others[0].start]
        is_beside = _BESIDE.fullmatch(between) and _NOTHING_MORE.match(answer, others[0].end)
        if (is_beside or _OTHERWISE.search(between)) and not _WORKING.search(answer, own[-1].end, others[0].end + 4):
            return _offers([own[-1], others[0]])
    return []


def _is_worked_out(run: Sequence[Value]) -> bool:
    """Whether the last value is made of those before it: their sum or product, or by one operation on two of them."""
    numbers = [value.number for value in run if value.number is not None]
    if len(numbers) != len(run) or len(numbers) < 3:
        return False
    *before, last = numbers
    product = Decimal(1)
    for number in before:
        product *= number
    if last in (sum(before), product):
        return True
    return any(
        last in (one + other, one * other, abs(one - other))
        or (other and one == last * other)
        or (one and other == last * one)
        for one, other in combinations(before[-20:], 2)
    )
