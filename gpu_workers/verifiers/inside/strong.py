"""A stronger check of a function than its tests: many inputs, each answered by the reference and by the candidate.

Two steps, each in a sandbox of its own, so that the reference is never where the candidate is. `prepare` runs the
tests on the reference to learn what it is called with, mutates that by type and keeps what the reference answers.
`compare` asks the candidate for the same and compares by strict type.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import random
import time
from typing import Any

import ratchet_verifier  # type: ignore[import-not-found]  # sdk.py under the name that programs know

from gpu_workers.verifiers.inside.handles import CandidateGone, Handle
from gpu_workers.verifiers.inside.inputs import literals, more_inputs, weight
from gpu_workers.verifiers.inside.values import decode, encode

MAX_SEEDS = 100
SEED_SECONDS = 3.0  # of a call that the tests make themselves: such an input is used however slow it is
OVERSHOOT = 3  # times as many inputs are tried as are wanted: the reference refuses some
MAX_VALUE = 3000  # characters of an argument list or answer that is kept
MAX_TOTAL = 180_000  # characters of all that are kept: they go through the sandbox's output
SHOWN = 600
# Floats that differ by less are equal: a mutant that adds in another order is not wrong.
REL, ABS = 1e-6, 1e-9


class NotPlain(Exception):
    """A value that is an object of the other process."""


def call(arguments: dict) -> str:
    """`step`: prepare or compare. The result with the nonce, as JSON."""
    result = (prepare if arguments["step"] == "prepare" else compare)(arguments)
    return json.dumps({"nonce": arguments["nonce"], "result": result})


def prepare(arguments: dict) -> dict:
    """Inputs that are valid for the reference (no exception, in time, the same answer twice) with its answers."""
    deadline = time.monotonic() + arguments["seconds"]
    with open_function(arguments, arguments["reference"]) as function:
        seeds = recorded_calls(arguments, function)
    cases: list = []
    num_refused, size, too_heavy = 0, 0, float("inf")
    reference = Reference(arguments)
    known = literals(arguments["reference"])
    own = {repr(given) for given in seeds}
    for given in more_inputs(seeds, OVERSHOOT * arguments["num_inputs"], arguments["seed"], known):
        if time.monotonic() > deadline or size > MAX_TOTAL or len(cases) == arguments["num_inputs"]:
            break
        heavy, seconds = weight(given), arguments["call_seconds"]
        if repr(given) in own:
            heavy, seconds = -1.0, SEED_SECONDS
        if heavy >= too_heavy:  # it took too long on less than this
            num_refused += 1
            continue
        first = reference.ask(given, seconds)
        if reference.is_slow and heavy >= 0:
            too_heavy = heavy
        again = reference.ask(given, seconds) if first[0] == "value" else first
        if first[0] != "value" or again[0] != "value" or difference(first[1], again[1]):
            num_refused += 1
            continue
        case = [encode(given, refuse), encode(first[1], refuse)]
        length = len(json.dumps(case))
        if length <= MAX_VALUE:
            cases.append(case)
            size += length
    reference.function.close()
    return {"cases": cases, "num_seeds": len(seeds), "num_refused": num_refused}


def compare(arguments: dict) -> dict:
    """What the candidate answers otherwise; `first` is the first input on which it does."""
    deadline = time.monotonic() + arguments["seconds"]
    num_compared, num_value, num_type, first = 0, 0, 0, None
    candidate = open_function(arguments, arguments["candidate"])
    for encoded_given, encoded_wanted in arguments["cases"]:
        if time.monotonic() > deadline:
            break
        given, wanted = decode(encoded_given, unexpected), decode(encoded_wanted, unexpected)
        outcome, got = candidate.ask(given, arguments["call_seconds"])
        num_compared += 1
        found = difference(wanted, got) if outcome == "value" else outcome
        if not found:
            continue
        num_type += found == "type"
        num_value += found != "type"
        if first is None or (first["kind"] == "type" and found != "type"):
            got_text = text_of(got) if outcome == "value" else str(got)[:SHOWN]
            first = {
                "kind": found,
                "input": shorten(", ".join(map(repr, given))),
                "expected": text_of(wanted),
                "got": got_text,
            }
        if candidate.gone:
            break
    candidate.close()
    return {"num_compared": num_compared, "num_value": num_value, "num_type": num_type, "first": first}


class Function:
    """The entry point of one program, in a process of its own. Programs that cannot be imported have no function."""

    def __init__(self, candidate: Any, name: str, seconds: float) -> None:
        self.candidate = candidate
        self.problem = ""
        self.function: Any = None
        candidate.timeout_seconds = max(5.0, seconds)  # imports
        try:
            self.function = getattr(candidate.module("solution"), name)
        except Exception as error:
            self.problem = type(error).__name__ + ": " + str(error)

    def __enter__(self) -> Function:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def gone(self) -> bool:
        return self.candidate.gone is not None

    def close(self) -> None:
        self.candidate.close()

    def ask(self, given: list, seconds: float) -> tuple:
        """("value", answer), or ("exception" | "timeout", what happened)."""
        if self.function is None:
            return "exception", self.problem
        self.candidate.timeout_seconds = seconds
        try:
            answer = self.function(*copy.deepcopy(given))  # what it does to its arguments happens to them here too
            encode(answer, refuse)
            return "value", answer
        except NotPlain as error:
            return "exception", "it returns " + str(error)
        except CandidateGone as error:
            return ("timeout" if error.timed_out else "exception"), str(error)
        except Exception as error:
            return "exception", type(error).__name__ + ": " + str(error)


class Reference:
    """The reference, in a fresh process whenever one has ended. `is_slow`: the last input took it too long, twice."""

    def __init__(self, arguments: dict) -> None:
        self.arguments = arguments
        self.function = open_function(arguments, arguments["reference"])
        self.is_slow = False

    def ask(self, given: list, seconds: float) -> tuple:
        """As Function.ask. What comes too late is asked again with three times the time: the machine may be busy."""
        outcome = self.function.ask(given, seconds)
        self.is_slow = False
        self._renew()
        if outcome[0] == "timeout":
            started = time.monotonic()
            outcome = self.function.ask(given, 3 * seconds)
            self.is_slow = time.monotonic() - started > seconds
            self._renew()
        return outcome

    def _renew(self) -> None:
        if self.function.gone:
            self.function.close()
            self.function = open_function(self.arguments, self.arguments["reference"])


def open_function(arguments: dict, code: str) -> Function:
    files = {"solution.py": arguments["prompt"] + "\n\n" + code}
    candidate = ratchet_verifier.open_candidate(files, timeout_seconds=5.0)
    return Function(candidate, arguments["entry_point"], arguments["call_seconds"])


def recorded_calls(arguments: dict, reference: Function) -> list:
    """Argument lists with which the tests call the function; plain positional ones. The tests may fail meanwhile."""
    calls: list = []

    def recorder(*given: Any, **named: Any) -> Any:
        if not named and len(calls) < MAX_SEEDS:
            with contextlib.suppress(NotPlain, ValueError):
                calls.append(decode(json.loads(json.dumps(encode(list(given), refuse))), unexpected))
        return reference.function(*given, **named)

    random.seed(arguments["seed"])  # some tests draw their inputs
    tests: dict = {"__name__": "tests"}
    exec(compile(arguments["prompt"], "<prompt>", "exec"), tests)  # noqa: S102  its helpers, which some tests call
    exec(compile(arguments["test"], "<tests>", "exec"), tests)  # noqa: S102
    tests[arguments["entry_point"]] = recorder
    try:
        tests["check"](recorder)
    except Exception as error:
        if not calls:
            raise RuntimeError("the tests call nothing: " + type(error).__name__ + ": " + str(error)) from error
    return calls


def difference(wanted: Any, got: Any) -> str:
    """Empty where both are the same; "type" where only types differ, as 1 and 1.0 or True; else "value"."""
    if same(wanted, got, strict=True):
        return ""
    return "type" if same(wanted, got, strict=False) else "value"


def same(wanted: Any, got: Any, strict: bool) -> bool:
    kind = type(wanted)
    if strict and kind is not type(got):
        return False
    if isinstance(wanted, (int, float)) and isinstance(got, (int, float)):
        if isinstance(wanted, int) and isinstance(got, int):
            return wanted == got
        return close(wanted, got)
    if kind in (list, tuple) and type(got) in (list, tuple):
        return len(wanted) == len(got) and all(same(a, b, strict) for a, b in zip(wanted, got))  # noqa: B905
    if kind is dict and type(got) is dict:
        return wanted.keys() == got.keys() and all(same(item, got[key], strict) for key, item in wanted.items())
    if isinstance(got, Handle):
        return False
    return kind is type(got) and wanted == got


def close(a: Any, b: Any) -> bool:
    try:
        a, b = float(a), float(b)
    except OverflowError:
        return bool(a == b)
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=REL, abs_tol=ABS)


def refuse(value: Any) -> dict:
    raise NotPlain("a " + type(value).__name__)


def unexpected(_: dict) -> Any:
    raise ValueError("a value that is no plain data")


def text_of(value: Any) -> str:
    return shorten(repr(value))


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
