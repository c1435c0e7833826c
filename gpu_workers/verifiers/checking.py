"""Tries a verifier on examples before a suite uses it: every case gets the verdict that its author expects, each time.

The file is JSON: `verifier` (a VerifierSpec; a text "@path" is read from that file, relative to this one), `reference`
(an answer, or {answer, files}, that must pass), `cases` (a list of {name, answer, files, verdict, score, reason_code};
`verdict` is needed) and, where a verifier looks at them, `contract` and `tools` as in a task.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, VerifierResult
from gpu_workers.contracts.tasks import EnvironmentContract, Message, TaskBundle, VerifierSpec
from gpu_workers.verifiers.judge import JudgeEndpoint
from gpu_workers.verifiers.registry import get_verifier


class CheckError(ValueError):
    """A file of examples that cannot be read; the message says where."""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One example and what its author expects; `score` and `reason_code` only where they are given."""

    verdict: Verdict
    name: str = ""
    answer: str = ""
    files: dict[str, str] = {}
    score: float | None = None
    reason_code: ReasonCode | None = None


class _Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    answer: str
    files: dict[str, str] = {}


class Examples(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    verifier: VerifierSpec
    reference: str | _Reference
    cases: list[Case] = []
    prompt: str = ""
    contract: EnvironmentContract = EnvironmentContract()


@dataclass(frozen=True)
class Outcome:
    """How one case went; `problem` is empty when every repeat gave what was expected."""

    name: str
    results: list[VerifierResult] = field(default_factory=list)
    problem: str = ""


def read_examples(path: Path) -> Examples:
    """Read a file of examples. Raises CheckError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(_with_files(data, path.parent), Examples)
    except (OSError, ValueError) as error:
        raise CheckError(f"{path}: {error}") from error


def _with_files(value: Any, folder: Path) -> Any:
    """Texts that begin with @ replaced by the file they name."""
    if isinstance(value, str) and value.startswith("@"):
        return (folder / value[1:]).read_text(encoding="utf-8")
    if isinstance(value, dict):
        return {key: _with_files(item, folder) for key, item in value.items()}
    return [_with_files(item, folder) for item in value] if isinstance(value, list) else value


async def check_examples(
    examples: Examples, backend: SandboxBackend, repeats: int = 3, judge: JudgeEndpoint | None = None
) -> list[Outcome]:
    """Judge the reference, the empty answer and every case `repeats` times. Raises results.TaskError."""
    reference = examples.reference
    if isinstance(reference, str):
        reference = _Reference(answer=reference)
    files = {**examples.contract.files, **reference.files}
    # The reference's files are the task's, so that blame can be assigned without replaying tools.
    task = TaskBundle(
        key="check",
        prompt=[Message(role="user", content=examples.prompt)],
        contract=msgspec.structs.replace(examples.contract, files=files),
        verifier=examples.verifier,
        reference=[Message(role="assistant", content=reference.answer)],
    )
    cases = [
        Case(name="the reference", answer=reference.answer, files=reference.files, verdict=Verdict.PASS),
        Case(name="the empty answer", verdict=Verdict.FAIL, score=0.0),
        *examples.cases,
    ]
    outcomes = []
    for index, case in enumerate(cases):
        verifier = get_verifier(examples.verifier, backend, judge)  # a fresh one: no case inherits another's memory
        content = {**examples.contract.files, **case.files}
        episode = FinishedEpisode(
            answer=case.answer,
            messages=[{"role": "assistant", "content": case.answer}],
            files={path: text.encode() for path, text in content.items()},
        )
        results = [await verifier.verify(task, episode) for _ in range(max(1, repeats))]
        name = case.name or f"cases[{index - 2}]"
        outcomes.append(Outcome(name, results, _problem(case, results)))
    return outcomes


def _problem(case: Case, results: Sequence[VerifierResult]) -> str:
    if len({(result.verdict, result.score) for result in results}) > 1:
        return "repeats disagree: " + ", ".join(f"{result.verdict} {result.score}" for result in results)
    got = results[0]
    wanted = {"verdict": case.verdict, "score": case.score, "reason_code": case.reason_code}
    for name, value in wanted.items():
        if value is not None and getattr(got, name) != value:
            return f"{name} should be {value}, is {getattr(got, name)}"
    return ""
