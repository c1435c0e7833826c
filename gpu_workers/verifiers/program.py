"""Verifier that runs a task author's program in a fresh sandbox of its own, never in the episode's."""

import json
from typing import Annotated, Any

import msgspec

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.groups import ComponentRecord
from gpu_workers.contracts.seams import FinishedEpisode, SandboxBackend, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierSpec
from gpu_workers.verifiers.leaning import Leaning
from gpu_workers.verifiers.results import (
    TaskError,
    VerifierConfig,
    failed,
    is_score,
    passed,
    read_config,
    storable,
)
from gpu_workers.verifiers.sandboxed import MAX_EPISODE_BYTES, SandboxRun, bundle, no_result, run_sandboxed, too_large

SOURCE = bundle("program", "values", "sdk", "server", "trust", "clock", "handles", "remote")
MAX_MESSAGE = 1000
MAX_EVIDENCE = 4000
MAX_COMPONENTS = 200
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
    score: Any = result.get("score")
    if not is_score(score):
        no_result(f"score must be a number from 0 to 1, got {type(score).__name__} {score!r}"[:MAX_MESSAGE])
    reason = result.get("reason_code", ReasonCode.WRONG_ANSWER)
    if reason not in PROGRAM_REASONS:
        no_result(f"reason_code {reason!r} is not one of {', '.join(sorted(PROGRAM_REASONS))}"[:MAX_MESSAGE])
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
    """The result with what is known of the sandbox that it came from."""
    return VerifierResult(
        verdict=result.verdict,
        score=result.score,
        reason_code=result.reason_code,
        message=result.message,
        evidence=result.evidence,
        components=components,
        nonce=run.nonce,
        isolation=run.record.isolation,
        limits_hit=tuple(run.record.limits_hit),
    )


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
