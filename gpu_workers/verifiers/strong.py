"""Stronger check of a function than its own tests: mutated inputs, the reference's answers, compared by strict type."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.seams import SandboxBackend
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.verifiers.results import NoResult, TaskError
from gpu_workers.verifiers.sandboxed import bundle, no_result, run_sandboxed

SOURCE = bundle(
    "strong", "values", "audit", "pipes", "sdk", "server", "trust", "clock", "handles", "process",
    "copies", "remote", "inputs",
)  # fmt: skip
SECONDS = 30.0  # of one sandbox: more than a task gives its verifier
SHARE = 0.8  # of it for the calls
REFERENCE_CALL_SECONDS = 0.2  # three times as much in a second try; an input that takes longer is not used
CANDIDATE_CALL_SECONDS = 3.0
_FENCED = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class FunctionTask:
    """A task that asks for one function, whose tests are `check(candidate)` of a text."""

    prompt: str
    entry_point: str
    test: str
    reference: str  # code


@dataclass(frozen=True)
class Cases:
    """Inputs valid for the reference with its answers, encoded. `num_seeds`: calls of the tests they come from."""

    cases: list[Any]
    num_seeds: int
    num_refused: int


@dataclass(frozen=True)
class Comparison:
    """A candidate beside the reference. `num_value` and `num_type` count inputs with another value, another type only.

    `first`: kind (value | type | exception | timeout), input, expected, got of the first difference; empty: none.
    """

    num_compared: int
    num_value: int
    num_type: int
    complete: bool
    first: Mapping[str, str] = field(default_factory=dict)


def function_task(task: TaskBundle) -> FunctionTask:
    """The function that a task asks for. Raises TaskError where it does not ask for one."""
    expected = task.verifier.expected
    names = ("prompt", "entry_point", "test")
    if not isinstance(expected, dict) or not all(isinstance(expected.get(name), str) for name in names):
        raise TaskError("verifier.expected: mutants need a function: the texts prompt, entry_point and test")
    turns = [message.content for message in task.reference if message.role == "assistant"]
    if not turns:
        raise TaskError("reference: the task has none that could be mutated")
    blocks = _FENCED.findall(turns[-1])
    prompt, entry_point, test = (expected[name] for name in names)
    return FunctionTask(prompt, entry_point, test, blocks[-1] if blocks else turns[-1])


class StrongCheck:
    """Compares candidates with the reference of one task. The reference's answers are computed once."""

    def __init__(self, task: TaskBundle, backend: SandboxBackend, *, seed: str, num_inputs: int) -> None:
        self.function = function_task(task)
        self.backend = backend
        self.seed = seed
        self.num_inputs = num_inputs
        limits = task.contract.limits
        roomy = msgspec.structs.replace(
            limits,
            verify_timeout_seconds=max(SECONDS, limits.verify_timeout_seconds),
            cpu_seconds=max(int(2 * SECONDS), limits.cpu_seconds),
        )
        self.task = msgspec.structs.replace(task, contract=msgspec.structs.replace(task.contract, limits=roomy))

    async def prepare(self) -> Cases:
        """Raises NoResult where the reference has no input, WorkerError without a sandbox."""
        result = await self._run(
            step="prepare",
            reference=self.function.reference,
            test=self.function.test,
            seed=self.seed,
            num_inputs=self.num_inputs,
            call_seconds=REFERENCE_CALL_SECONDS,
        )
        cases, num_seeds, num_refused = (result.get(name) for name in ("cases", "num_seeds", "num_refused"))
        if not isinstance(cases, list) or type(num_seeds) is not int or type(num_refused) is not int:
            no_result("the strong check handed over no cases")
        if not cases:
            raise NoResult(ReasonCode.VERIFIER_NO_RESULT, "no input of the tests is valid for the reference")
        return Cases(cases, num_seeds, num_refused)

    async def compare(self, cases: Cases, code: str) -> Comparison:
        """Raises NoResult, WorkerError as `prepare`."""
        result = await self._run(step="compare", candidate=code, cases=cases.cases, call_seconds=CANDIDATE_CALL_SECONDS)
        counts = [result.get(name) for name in ("num_compared", "num_value", "num_type")]
        first = result.get("first") or {}
        if any(type(count) is not int for count in counts) or not isinstance(first, dict):
            no_result("the strong check handed over no counts")
        num_compared, num_value, num_type = (int(count) for count in counts if count is not None)
        texts = {str(key): str(value) for key, value in first.items()}
        return Comparison(num_compared, num_value, num_type, num_compared == len(cases.cases), texts)

    async def _run(self, **arguments: Any) -> dict[str, Any]:
        shared = {"prompt": self.function.prompt, "entry_point": self.function.entry_point}
        seconds = SHARE * self.task.contract.limits.verify_timeout_seconds
        run = await run_sandboxed(self.backend, self.task, SOURCE, {**shared, "seconds": seconds, **arguments})
        return run.result
