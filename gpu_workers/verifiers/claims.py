"""Which numbers a text claims to be its answer: "the answer is 24", a box, one sentence said of several values. Pure.

Numbers of working are no claims. One claim may be taken back, in words that say so; what is claimed after it counts.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpu_workers.verifiers.offers import Value

MAX_TEXT = 20_000  # characters from the end that are looked at
NEAR = 400  # characters around a claim that are its sentence
_COPULA = r"(?::|=|\b(?:is|are|was|equals|becomes|(?:would|could|might|may|must|will|should) (?:also )?be|comes to)\b)"
_CLAIM = re.compile(
    r"\b(?P<word>answer|result|total|sum|solution)\b"
    rf"(?P<rest>[*_]*(?:\([^()\n]{{0,60}}\)|[^\n.;:=()]){{0,60}}?){_COPULA}",
    re.I,
)
_LEAD = re.compile(
    r"(?:[\s$*_`:=(){}\[\]\\\"']|\\?(?:boxed|text|textbf|mathbf)\b"
    r"|\b(?:about|approximately|exactly|roughly|thus|therefore|simply|just|then|now|also|equal to|be|is)\b,?)*",
    re.I,
)
_PARTIAL = re.compile(
    r"\b(?:running|partial|sub-?|intermediate|first|second|third|next|current|new|previous|interim)[\s-]*\Z", re.I
)
_OF_A_PART = re.compile(r"\b(?:part|step|first|second|third|sub-?question|so far|not|isn't)\b", re.I)
_STEP = re.compile(r"\W*(?:step|first|then|next|now|second|third)\b", re.I)
_WORKING = re.compile(r"\d\s*(?:[+×÷·*/^]|\\times|\\cdot|[-−]\s)\s*\d")
_CHAIN = re.compile(
    r"(?:\s*(?:[-+×÷·*/^−]|\\times|\\cdot|\\div"
    r"|\b(?:times|plus|minus|(?:divided|multiplied) by|over|(?:more|less) than)\b)\s*\(?\d(?:[\d.,]*\d)?\)?)+"
)
_EQUALS = re.compile(
    r"\s{0,9}(?:=|[,;]?\s{0,9}\b(?:so|thus|hence|therefore|(?:which )?(?:is|makes|gives|equals))\b,?)"
    r"[\s$*\\({\[]{0,20}",
    re.I,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|<(?:final_?)?answer>", re.I)
TAKEN_BACK = re.compile(
    r"\b(?:no,? wait|wait|scratch that|correction|sorry|oops|on second thought|let me (?:re|correct|fix|try)\w*"
    r"|(?:i|that) (?:was|is|made|did)\w* (?:a )?(?:wrong|mistake\w*|not right|an error|miscount\w*)|that's wrong"
    r"|i was wrong|mistaken|miscalculated|actually|rather|instead|hmm|redo|recheck\w*)\b",
    re.I,
)


@dataclass(frozen=True)
class Claim:
    """A value that is said to be what was asked for. `subject`: of what it is said; "answer" of the answer itself."""

    value: Value
    subject: str
    start: int


def claims(answer: str, values: Sequence[Value]) -> list[Claim]:
    """All in their order."""
    found = [*_said(answer, values), *_boxed(answer, values)]
    return sorted(found, key=lambda claim: claim.value.start)


def contradicting(answer: str, made: Sequence[Claim]) -> list[Value]:
    """The values among which claims of one thing leave the choice: more than one change of mind, or one unsaid."""
    for subject in {claim.subject for claim in made}:
        own = [claim for claim in made if claim.subject == subject]
        changes = [(one, other) for one, other in pairwise(own) if one.value.number != other.value.number]
        unsaid = [c for c in changes if not TAKEN_BACK.search(answer, c[0].value.end, c[1].value.start)]
        if len(changes) > 1 or unsaid:
            return [claim.value for claim in own]
    return []


def final(answer: str, made: Sequence[Claim]) -> Value | None:
    """The value of the last claim of the answer itself, unless it is taken back; None where there is none.

    A result or total without more words is the answer where its sentence is the last.
    """
    own = [claim for claim in made if claim.subject == "answer"]
    if (
        not own
        and made
        and " " not in made[-1].subject
        and not re.search(r"\n|[.;!?]\s+[A-Z]", answer[made[-1].value.end :])
    ):
        own = [made[-1]]
    if not own or TAKEN_BACK.search(answer, own[-1].value.end):
        return None
    return own[-1].value


def _said(answer: str, values: Sequence[Value]) -> Iterator[Claim]:
    for match in _CLAIM.finditer(answer, max(0, len(answer) - MAX_TEXT)):
        near = max(0, match.start() - NEAR)
        begins = max(near, 1 + max(answer.rfind(sign, near, match.start()) for sign in ".\n;!?"))
        is_answer = match["word"].casefold() == "answer"
        if _PARTIAL.search(answer, begins, match.start()) or _OF_A_PART.search(match["rest"]):
            continue
        first = _from(values, match.end())
        if first is None or not _LEAD.fullmatch(answer, match.end(), first.start):
            continue
        value = _end_of_chain(answer, values, first)
        if value is None:
            continue
        line_end = (answer.find("\n", value.end, value.end + NEAR) + 1 or value.end + NEAR + 1) - 1
        if not is_answer and (_STEP.match(answer, begins) or _WORKING.search(answer, begins, line_end)):
            continue
        said = "answer" if is_answer else " ".join(f"{match['word']}{match['rest']}".casefold().split())
        yield Claim(value, said, match.start())


def _end_of_chain(answer: str, values: Sequence[Value], first: Value) -> Value | None:
    """24 of "7 + 8 + 9 = 24" or "4 times 6, so 24"; None of a sum that nobody has worked out."""
    at, value = first.end, first
    while chain := _CHAIN.match(answer, at):
        equals = _EQUALS.match(answer, chain.end())
        after = _from(values, equals.end()) if equals else None
        if equals is None or after is None or after.start != equals.end():
            return None
        value, at = after, after.end
    return value


def _boxed(answer: str, values: Sequence[Value]) -> Iterator[Claim]:
    for match in _BOX.finditer(answer, max(0, len(answer) - MAX_TEXT)):
        end = answer.find("}" if match.group().endswith("{") else "</", match.end())
        first = _from(values, match.end())
        if first is None or first.end > end:
            continue
        second = _from(values, first.end)
        if second is None or second.end > end:
            yield Claim(first, "answer", match.start())


def _from(values: Sequence[Value], place: int) -> Value | None:
    """The first value that begins there or behind."""
    index = bisect_left(values, place, key=lambda value: value.start)
    return values[index] if index < len(values) else None
