"""Verifier that runs a task author's program in a fresh sandbox of its own, never in the episode's."""

import fnmatch
import json
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.groups import ComponentRecord
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.detectors.runtime import SEEN
from gpu_workers.verifiers.detectors.view import TEST_FILES
from gpu_workers.verifiers.leaning import Leaning
from gpu_workers.verifiers.results import (
    NoResult,
    TaskError,
    VerifierConfig,
    failed,
    is_score,
    passed,
    read_config,
    storable,
)
from gpu_workers.verifiers.sandboxed import MAX_EPISODE_BYTES, SandboxRun, bundle, no_result, run_sandboxed, too_large

SOURCE = bundle(
    "program",
    "values",
    "audit",
    "pipes",
    "sdk",
    "server",
    "trust",
    "clock",
    "handles",
    "process",
    "copies",
    "remote",
    "guest",
)
MAX_MESSAGE = 1000
MAX_EVIDENCE = 4000
MAX_COMPONENTS = 200
MAX_SEEN_OF_KIND = 8
MAX_SEEN = 200  # characters of a text
PROGRAM_REASONS = frozenset(
    {
        ReasonCode.WRONG_ANSWER, ReasonCode.NO_OUTPUT, ReasonCode.FORMAT_INVALID, ReasonCode.AGENT_TIMEOUT,
        ReasonCode.RESOURCE_LIMIT, ReasonCode.TAMPER_DETECTED, ReasonCode.FORBIDDEN_ACCESS,
    }
)  # fmt: skip


class ProgramConfig(VerifierConfig, frozen=True, kw_only=True):
    pass_score: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    parameters: dict[str, Any] = {}  # handed to the program as episode["parameters"]


class ProgramVerifier:
    """Runs `verify(episode)`: keys answer, messages, files, expected, task; returns score 0..1, message.

    Pass when score >= config `pass_score` (default 1). Optional keys of the result: reason_code of a fail, evidence,
    components. Raises NoResult without a valid result.
    """

    def __init__(self, spec: VerifierSpec, backend: SandboxBackend) -> None:
        config = read_config(spec, ProgramConfig)
        if not spec.program.strip():
            raise TaskError("verifier.program: is empty; it must define verify(episode)")
        check_source(spec.program, "verifier.program")
        self.spec = spec
        self.backend = backend
        self.pass_score = config.pass_score
        self.parameters = config.parameters
        self.leaning = Leaning(backend, self._attempt)

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        return await self.leaning.judge(task, episode)

    async def _attempt(self, task: TaskBundle, episode: FinishedEpisode) -> tuple[SandboxRun, VerifierResult]:
        if sum(map(len, episode.files.values())) > MAX_EPISODE_BYTES:
            raise too_large()
        arguments = {"program": self.spec.program, "episode": self._visible(task, episode)}
        arguments["shown"] = shown_tests(task)
        run = await run_sandboxed(self.backend, task, SOURCE, arguments)
        return run, read_score(run, self.pass_score)

    def _visible(self, task: TaskBundle, episode: FinishedEpisode) -> dict[str, Any]:
        """What the program may see, as plain data."""
        description = {"key": task.key, "tags": task.tags, "prompt": task.prompt, "seed": task.contract.seed}
        plain: dict[str, Any] = msgspec.to_builtins(
            {
                "answer": episode.answer,
                "messages": episode.messages,
                "expected": self.spec.expected,
                "task": description,
                "stop_reason": str(episode.stop_reason),
                "parameters": self.parameters,
            }
        )
        return plain | {"files": {path: _text(data) for path, data in episode.files.items()}}


def read_score(run: SandboxRun, pass_score: float) -> VerifierResult:
    """The program's own result, held against the rules. Raises NoResult."""
    result = run.result
    if "crashed" in result:  # what was seen is kept
        message = f"the verifier ended with an error: {result['crashed']}"
        raise NoResult(ReasonCode.VERIFIER_CRASH, message[:MAX_MESSAGE], evidence={SEEN: seen_in(result)})
    score: Any = result.get("score")
    if not is_score(score):
        no_result(f"score must be a number from 0 to 1, got {type(score).__name__} {score!r}"[:MAX_MESSAGE])
    reason = result.get("reason_code", ReasonCode.WRONG_ANSWER)
    if reason == ReasonCode.OK and score < pass_score:
        no_result(f"reason_code OK with the score {score:g}, which is below {pass_score:g}: leave it out of a fail, or"
                  f" name one of {', '.join(sorted(PROGRAM_REASONS))}"[:MAX_MESSAGE])  # fmt: skip
    if reason not in PROGRAM_REASONS | {ReasonCode.OK}:
        no_result(f"reason_code {reason!r} is not one of {', '.join(sorted(PROGRAM_REASONS))}, nor OK of a full pass;"
                  " it may be left out"[:MAX_MESSAGE])  # fmt: skip
    evidence = result.get("evidence", {})
    if not isinstance(evidence, dict) or len(json.dumps(evidence)) > MAX_EVIDENCE:
        evidence = {"note": "evidence was not an object or too large"}
    message = str(result.get("message", ""))[:MAX_MESSAGE]
    if score >= pass_score:
        judged = passed(message, score=score, evidence=evidence)
    else:
        message = message or f"score {score:g} is below {pass_score:g}"
        judged = failed(ReasonCode(reason), message, score=score, evidence=evidence)
    return from_run(judged, run, _components(result.get("components", [])))


def from_run(result: VerifierResult, run: SandboxRun, components: tuple[ComponentRecord, ...]) -> VerifierResult:
    """The result with what is known of the sandbox that it came from, and of what code of the candidate did there."""
    seen = seen_in(run.result)
    return VerifierResult(
        verdict=result.verdict,
        score=result.score,
        reason_code=result.reason_code,
        message=result.message,
        evidence={**result.evidence, SEEN: seen} if seen else result.evidence,
        components=components,
        nonce=run.nonce,
        isolation=run.record.isolation,
        limits_hit=tuple(run.record.limits_hit),
    )


def seen_in(result: dict[str, Any]) -> dict[str, list[str]]:
    """Kind of deed -> what code of the candidate was seen doing, as storable text."""
    seen = result.get("seen")
    if not isinstance(seen, dict):
        return {}
    return {
        kind: [storable(str(what))[:MAX_SEEN] for what in whats[:MAX_SEEN_OF_KIND]]
        for kind, whats in seen.items()
        if isinstance(kind, str) and isinstance(whats, list) and whats
    }


def shown_tests(task: TaskBundle) -> list[str]:
    """Paths of the tests that the task gave the policy: code that opens them at the check looks its answers up."""
    return [path for path in task.contract.files if any(fnmatch.fnmatch(path, glob) for glob in TEST_FILES)]


def check_source(source: str, where: str) -> None:
    """Refuse what does not compile. Raises TaskError."""
    try:
        compile(source, where, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise TaskError(f"{where}: does not compile: {error}") from error


def _components(rows: Any) -> tuple[ComponentRecord, ...]:
    """What the program says its score is made of; one that says nonsense says nothing."""
    if not isinstance(rows, list):
        return ()
    return tuple(
        ComponentRecord(
            name=storable(str(row.get("name", "")))[:MAX_MESSAGE],
            verdict=Verdict.PASS if row["score"] == 1 else Verdict.FAIL,
            score=float(row["score"]),
            reason_code=ReasonCode.OK if row["score"] == 1 else ReasonCode.WRONG_ANSWER,
            message=storable(str(row.get("message", "")))[:MAX_MESSAGE],
        )
        for row in rows[:MAX_COMPONENTS]
        if isinstance(row, dict) and is_score(row.get("score"))
    )


def _text(data: bytes) -> str | bytes:
    """Text of a file; bytes where it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
