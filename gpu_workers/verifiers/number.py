"""Verifier of numbers: the last number of the answer, compared in decimal."""

import re
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts import builtin_tools
from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.seams import FinishedEpisode, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.alternatives import Value, alternatives
from gpu_workers.verifiers.claims import claims, contradicting, final
from gpu_workers.verifiers.extraction import compile_pattern, extract, several_matches
from gpu_workers.verifiers.hedges import hedged
from gpu_workers.verifiers.results import TaskError, VerifierConfig, failed, passed, read_config

MAX_DIGITS = 60
# Thousands separated by commas only in groups of three; not a part of a word or of a version like 1.2.3.
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?(?![\w]|\.\d)")


REFUSES = re.compile(
    r"\b(?:(?:can(?:no|')?t|can not|won't|will not|unable to|not able to|must decline to) (?:\w+ ){0,2}?"
    r"(?:help(?! but)|assist|answer|solve|comply|provide|do (?:that|this)|respond|fulfil\w*)"
    r"|i (?:refuse|decline)\b)", re.I,
)  # fmt: skip


class NumberConfig(VerifierConfig, frozen=True, kw_only=True):
    pattern: str = ""  # regular expression whose last match is searched instead of the whole answer
    tolerance: float = 0  # absolute
    results_credit: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # for results that tools gave on the way
    needs_results: bool = False  # a right answer counts only where tools gave every wanted result


class NumberVerifier:
    """The last number of the answer within `tolerance` (absolute, default 0) of `expected` or one of several.

    Where the answer claims one ("the answer is 24", a box), that one counts, whatever its explanation names after it.
    An answer that leaves the choice among several numbers ("28 or 29", one by case, several claims or corrections) has
    the wrong form; a refusal is no answer.

    Config `results_credit` below 1, with `expected` as {"answer": …, "results": [texts]}: a wrong answer earns that
    much times the share of the results that tools gave on the way. It never turns a fail into a pass. With
    `needs_results` a right answer without them fails: it was guessed, or known from elsewhere.
    """

    def __init__(self, spec: VerifierSpec) -> None:
        config = read_config(spec, NumberConfig)
        self.pattern = compile_pattern(config.pattern)
        self.tolerance = _decimal(config.tolerance, "verifier.config.tolerance")
        if self.tolerance < 0:
            raise TaskError("verifier.config.tolerance: must not be negative")
        self.results_credit = config.results_credit
        self.needs_results = config.needs_results
        expected, self.results = _split_expected(spec.expected)
        values = expected if isinstance(expected, list) else [expected]
        if not values:
            raise TaskError("verifier.expected: must be a number or a non-empty list of numbers")
        self.expected = [_decimal(value, "verifier.expected") for value in values]

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        result = self._judge(episode)
        if result.verdict == Verdict.PASS and self._lacks_results(episode):
            message = "the number is right, but no tool gave what it rests on"
            result = failed(ReasonCode.WRONG_ANSWER, message, evidence={"needed": self.results[:10]})
        if result.verdict != Verdict.FAIL or not self.results_credit:
            return result
        return replace(result, score=self.results_credit * self._share_of_results(episode))

    def _lacks_results(self, episode: FinishedEpisode) -> bool:
        return self.needs_results and bool(self.results) and self._share_of_results(episode) < 1.0

    def _share_of_results(self, episode: FinishedEpisode) -> float:
        """Share of the wanted results among those of calls that worked, in any order, each counted once.

        What a shell, an interpreter or a file says is what the policy had it say; so is a result that stands among the
        arguments of its own call.
        """
        missing = list(self.results)
        for message in episode.messages:
            if (
                message.get("role") != "tool"
                or not message.get("ok", True)
                or message.get("name") in builtin_tools.SCHEMAS
            ):
                continue
            content = message.get("content")
            if content in missing and content not in map(str, (message.get("arguments") or {}).values()):
                missing.remove(content)
        return 1.0 - len(missing) / len(self.results) if self.results else 0.0

    def _judge(self, episode: FinishedEpisode) -> VerifierResult:
        if not episode.answer.strip():
            return failed(ReasonCode.NO_OUTPUT, "the answer is empty")
        found = extract(episode.answer, self.pattern)
        values = numbers_in(found) if found is not None else []
        if found is None or not values:
            missing = "the required pattern" if found is None else "a number"
            return failed(ReasonCode.FORMAT_INVALID, f"the answer does not contain {missing}")
        made = claims(found, values)
        chosen = final(found, made) or values[-1]
        if self.pattern is None and REFUSES.search(episode.answer) and not made:
            return failed(ReasonCode.NO_OUTPUT, "the answer is a refusal; the number in it is claimed to be nothing")
        text, got = chosen.text, chosen.number
        if got is None:
            return failed(ReasonCode.FORMAT_INVALID, f"a number of more than {MAX_DIGITS} digits")
        rest = [value for value in values if value.start <= chosen.start]
        offered = (
            [value.text for value in contradicting(found, made)]
            or hedged(found, values, made)
            or (alternatives(found, values) if chosen == values[-1] else alternatives(found[: chosen.end], rest))
            or several_matches(episode.answer, self.pattern)
        )
        if offered:
            return failed(ReasonCode.FORMAT_INVALID, f"the answer leaves the choice among {', '.join(offered[:10])}")
        if any(abs(got - wanted) <= self.tolerance for wanted in self.expected):
            return passed()
        evidence = {"expected": [str(e) for e in self.expected[:10]], "got": text, "tolerance": str(self.tolerance)}
        return failed(ReasonCode.WRONG_ANSWER, f"{text} is not the expected number", evidence=evidence)


def numbers_in(text: str) -> list[Value]:
    """The numbers of a text in order, without a value where one has more than MAX_DIGITS digits."""
    found = []
    for match in NUMBER.finditer(text):
        plain = match.group().replace(",", "").replace("−", "-")
        number = Decimal(plain) if len(plain) <= MAX_DIGITS else None
        found.append(Value(match.group(), match.start(), match.end(), number))
    return found


def _split_expected(expected: Any) -> tuple[Any, list[str]]:
    if not isinstance(expected, dict):
        return expected, []
    results = expected.get("results")
    if set(expected) != {"answer", "results"} or not isinstance(results, list) or not all(map(_is_text, results)):
        raise TaskError('verifier.expected: as an object it must be {"answer": number, "results": [texts]}')
    return expected["answer"], results


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _decimal(value: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TaskError(f"{where}: must be a number, got {type(value).__name__}")
    try:
        number = Decimal(str(value))
    except InvalidOperation as error:
        raise TaskError(f"{where}: {value!r} is not a number") from error
    if not number.is_finite():
        raise TaskError(f"{where}: {value!r} is not finite")
    return number
