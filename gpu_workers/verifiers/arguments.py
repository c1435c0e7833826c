"""Comparison of one function call with accepted values, as the Berkeley function-calling answers are written. Pure.

Accepted values of a parameter are a list of alternatives; the empty string among them means that it may be left out.
Types are strict: a bool is no number, an int is accepted where a float is declared and not the other way round.
Strings are compared without case, blanks and `,./-_*^`; a quote of either kind is the same.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPTIONAL = ""
_IGNORED = re.compile(r"[ ,./\-_*^]")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "any": (str,), "integer": (int,), "number": (int, float), "float": (int, float),
    "boolean": (bool,), "array": (list,), "list": (list,), "tuple": (list,), "object": (dict,), "dict": (dict,),
    "null": (type(None),),
}  # fmt: skip


@dataclass(frozen=True)
class ExpectedCall:
    """A function and, for each of its parameters, the accepted values."""

    name: str
    arguments: Mapping[str, Sequence[Any]]


@dataclass
class Difference:
    """Why one argument does not fit. `problem` is a stable word."""

    problem: str  # missing_argument | unexpected_argument | wrong_type | wrong_argument_value
    argument: str
    expected: Any = None
    got: Any = None

    def describe(self) -> dict[str, Any]:
        return {"problem": self.problem, "argument": self.argument, "expected": self.expected, "got": self.got}


@dataclass
class Comparison:
    """Outcome for the right function: how many arguments are right, and what differs."""

    num_right: int = 0
    num_compared: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def fraction(self) -> float:
        return self.num_right / self.num_compared if self.num_compared else float(not self.differences)


def compare_arguments(
    arguments: Mapping[str, Any], expected: ExpectedCall, parameters: Mapping[str, Any], *, exact: bool = False
) -> Comparison:
    """Compare bound arguments; `parameters` is the tool's JSON schema (types, required names).

    `exact`: texts are compared as they are.
    """
    outcome = Comparison()
    properties = parameters.get("properties", {})
    required = set(parameters.get("required", ()))
    for name, accepted in expected.arguments.items():
        if name in arguments:
            outcome.num_compared += 1
            difference = _difference(name, arguments[name], accepted, properties.get(name, {}), exact)
            if difference is None:
                outcome.num_right += 1
            else:
                outcome.differences.append(difference)
        elif OPTIONAL not in accepted or name in required:
            outcome.num_compared += 1
            outcome.differences.append(Difference("missing_argument", name, expected=_real(accepted)))
    for name in arguments:
        if name not in expected.arguments:
            outcome.num_compared += 1
            outcome.differences.append(Difference("unexpected_argument", name, got=arguments[name]))
    return outcome


def normalise(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def matches(value: Any, accepted: Any, exact: bool = False) -> bool:
    """Whether a value equals one accepted value; in a dictionary each key holds alternatives of its own."""
    if isinstance(accepted, str):
        return isinstance(value, str) and (value == accepted or (not exact and normalise(value) == normalise(accepted)))
    if isinstance(accepted, bool) or isinstance(value, bool) or accepted is None:
        return type(value) is type(accepted) and value == accepted
    if isinstance(accepted, int | float):
        return isinstance(value, int | float) and value == accepted
    if isinstance(accepted, list):
        return (
            isinstance(value, list)
            and len(value) == len(accepted)
            and all(matches(v, a, exact) for v, a in zip(value, accepted, strict=True))
        )
    return isinstance(value, dict) and isinstance(accepted, dict) and _matches_dict(value, accepted, exact)


def _matches_dict(value: Mapping[str, Any], accepted: Mapping[str, Any], exact: bool) -> bool:
    alternatives = {k: v if isinstance(v, list) else [v] for k, v in accepted.items()}
    if any(key not in alternatives for key in value):
        return False
    if any(key not in value and OPTIONAL not in options for key, options in alternatives.items()):
        return False
    return all(any(matches(v, option, exact) for option in alternatives[k]) for k, v in value.items())


def _real(accepted: Sequence[Any]) -> list[Any]:
    return [value for value in accepted if value != OPTIONAL]


def _difference(
    name: str, value: Any, accepted: Sequence[Any], schema: Mapping[str, Any], exact: bool
) -> Difference | None:
    shown = list(accepted)
    if not _type_fits(value, schema, accepted):
        return Difference("wrong_type", name, expected=schema.get("type", shown), got=value)
    if not any(matches(value, option, exact) for option in accepted):
        return Difference("wrong_argument_value", name, expected=shown, got=value)
    return None


def _type_fits(value: Any, schema: Mapping[str, Any], accepted: Sequence[Any]) -> bool:
    """The declared type, or that of the answer itself where the two disagree (a variable's name as text)."""
    real = _real(accepted)
    if real and type(value) is type(real[0]):
        return True
    declared = schema.get("type")
    kinds = [declared] if isinstance(declared, str) else list(declared or ())
    if not any(kind in _TYPES for kind in kinds):
        return True  # nothing declared: the value decides
    allowed = tuple(t for kind in kinds for t in _TYPES.get(kind, ()))
    return isinstance(value, allowed) and not (isinstance(value, bool) and bool not in allowed)
