"""Verifier of structured function calls: the answer's text must be exactly the expected calls."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.seams import FinishedEpisode, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.arguments import Comparison, ExpectedCall, compare_arguments
from gpu_workers.verifiers.calls import CallSyntaxError, ParsedCall, bind_arguments, parse_calls
from gpu_workers.verifiers.results import TaskError, VerifierConfig, failed, passed, read_config

FUNCTION_SCORE = 0.2
ARGUMENTS_SCORE = 0.5


class ToolCallConfig(VerifierConfig, frozen=True, kw_only=True):
    partial: bool = False
    partial_credit: bool = False  # the same by another name
    exact: bool = False  # texts must be an accepted one letter by letter, as a function would get them


class ToolCallVerifier:
    """Exact match against `expected`: a list of {function: {parameter: [accepted values]}}, in any order.

    Partial credit (config `partial`): .2 + .5 × share of right arguments for the right function, if any is right: a
    name alone earns nothing. 1 only for an exact match; it never turns a fail into a pass. Too many calls of which
    several are of one function are no answer: FORMAT_INVALID.
    """

    def __init__(self, spec: VerifierSpec) -> None:
        config = read_config(spec, ToolCallConfig)
        self.partial = config.partial or config.partial_credit
        self.exact = config.exact
        self.expected = read_expected(spec.expected)

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        if not episode.answer.strip():
            return failed(ReasonCode.NO_OUTPUT, "the answer is empty")
        schemas = {tool.name: tool.parameters for tool in task.tools}
        try:
            calls = parse_calls(episode.answer, task.tool_format)
            bound = [(call.name, _bind(call, schemas)) for call in calls]
        except CallSyntaxError as error:
            return failed(ReasonCode.FORMAT_INVALID, str(error), evidence={"got": episode.answer[:500]})
        return self._compare(bound, schemas)

    def _compare(self, calls: Sequence[tuple[str, dict[str, Any]]], schemas: Mapping[str, Any]) -> VerifierResult:
        if sprayed := self._called_too_often(calls):
            message = f"{sprayed!r} is called again and again: one answer is wanted, not several to choose from"
            evidence = {"problem": "repeated_function", "expected": len(self.expected), "got": len(calls)}
            return failed(ReasonCode.FORMAT_INVALID, message, evidence=evidence)
        if len(calls) != len(self.expected):
            evidence = {"problem": "wrong_count", "expected": len(self.expected), "got": len(calls)}
            message = f"wrong_count: {len(self.expected)} calls expected, got {len(calls)}"
            return failed(ReasonCode.WRONG_ANSWER, message, evidence=evidence)
        pairs = _assign(calls, self.expected, schemas, self.exact)
        problems = [problem for pair in pairs for problem in pair.problems()]
        if not problems:
            return passed()
        first = problems[0]
        where = f" {first['argument']!r}" if "argument" in first else ""
        message = f"{first['problem']}{where}: expected {first['expected']!r}, got {first['got']!r}"
        score = sum(pair.credit for pair in pairs) / len(pairs) if self.partial else 0.0
        return failed(ReasonCode.WRONG_ANSWER, message[:500], score=score, evidence={"problems": problems[:20]})

    def _called_too_often(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """A function called more than once and more often than expected, in an answer of too many calls; else empty."""
        counts, wanted = Counter(name for name, _ in calls), Counter(call.name for call in self.expected)
        excess = len(calls) > len(self.expected)
        return next((name for name, count in counts.items() if excess and count > max(1, wanted[name])), "")


def read_expected(expected: Any) -> list[ExpectedCall]:
    """Expected calls of a task, as {function: {…}} or {"name": function, "arguments": {…}}. Raises TaskError."""
    if not isinstance(expected, list) or not expected:
        raise TaskError("verifier.expected: must be a non-empty list of calls")
    calls: list[ExpectedCall] = []
    for index, item in enumerate(expected):
        where = f"verifier.expected[{index}]"
        if not isinstance(item, dict):
            raise TaskError(f"{where}: must be an object {{function: {{parameter: [accepted values]}}}}")
        if set(item) == {"name", "arguments"} and isinstance(item["name"], str):
            name, arguments = item["name"], item["arguments"]
        elif len(item) == 1:
            ((name, arguments),) = item.items()
        else:
            raise TaskError(f"{where}: must name exactly one function")
        if not isinstance(arguments, dict):
            raise TaskError(f"{where}.{name}: must be an object of parameters")
        for parameter, accepted in arguments.items():
            if not isinstance(accepted, list) or not accepted:
                raise TaskError(f"{where}.{name}.{parameter}: must be a non-empty list of accepted values")
        calls.append(ExpectedCall(name=name, arguments=arguments))
    return calls


def _bind(call: ParsedCall, schemas: Mapping[str, Any]) -> dict[str, Any]:
    if call.args and call.name not in schemas:
        return dict(call.kwargs)  # an unknown function is a wrong one, whatever its arguments
    return bind_arguments(call, schemas.get(call.name, {}))


@dataclass(frozen=True)
class _Pair:
    """A call held against an expected one. `comparison` is None for another function."""

    name: str
    wanted: ExpectedCall
    comparison: Comparison | None

    @property
    def credit(self) -> float:
        if self.comparison is None:
            return 0.0
        if not self.comparison.differences:
            return 1.0
        if not self.comparison.num_right:
            return 0.0
        return FUNCTION_SCORE + ARGUMENTS_SCORE * self.comparison.fraction

    def problems(self) -> list[dict[str, Any]]:
        if self.comparison is None:
            return [{"problem": "wrong_function", "expected": self.wanted.name, "got": self.name}]
        return [{"function": self.name, **difference.describe()} for difference in self.comparison.differences]


def _assign(
    calls: Sequence[tuple[str, dict[str, Any]]],
    expected: Sequence[ExpectedCall],
    schemas: Mapping[str, Any],
    exact: bool,
) -> list[_Pair]:
    """Pair as many calls as there are expected ones so that the credit is highest."""
    table = [[_pair(call, wanted, schemas, exact) for call in calls] for wanted in expected]
    if len(expected) == 1:
        return table[0]
    from scipy.optimize import linear_sum_assignment  # slow to import, and most tasks have one call

    rows, columns = linear_sum_assignment([[pair.credit for pair in row] for row in table], maximize=True)
    return [table[row][column] for row, column in zip(rows, columns, strict=True)]


def _pair(call: tuple[str, dict[str, Any]], wanted: ExpectedCall, schemas: Mapping[str, Any], exact: bool) -> _Pair:
    name, arguments = call
    if name != wanted.name:
        return _Pair(name, wanted, None)
    return _Pair(name, wanted, compare_arguments(arguments, wanted, schemas.get(name, {}), exact=exact))
