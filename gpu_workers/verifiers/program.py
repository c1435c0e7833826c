"""Verifier that runs a task author's program in a fresh sandbox of its own, never in the episode's."""

import hmac
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.contracts.seams import ExecResult, FinishedEpisode, SandboxBackend, VerifierResult, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, TaskBundle, VerifierSpec
from gpu_workers.verifiers.reference import reference_episode
from gpu_workers.verifiers.results import TaskError, check_config, errored, failed, passed

CONFIG: Mapping[str, type | tuple[type, ...]] = {"pass_score": (int, float)}
HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
MAX_EPISODE_BYTES = 32 * 2**20
MAX_MESSAGE = 1000
MAX_EVIDENCE = 4000
PROGRAM_REASONS = frozenset(
    {
        ReasonCode.WRONG_ANSWER, ReasonCode.NO_OUTPUT, ReasonCode.FORMAT_INVALID,
        ReasonCode.RESOURCE_LIMIT, ReasonCode.TAMPER_DETECTED, ReasonCode.FORBIDDEN_ACCESS,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """A valid result of the program."""

    score: float
    message: str
    reason: ReasonCode
    evidence: dict[str, Any]


class NoResult(Exception):
    """The program gave no valid result; whose fault that is remains to be found out."""

    def __init__(self, reason: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ProgramVerifier:
    """Runs `verify(episode)`: keys answer, messages, files, expected, task; returns score 0..1, message.

    Pass when score >= config `pass_score` (default 1). Without a valid result the program is run on the task's
    reference in the same way: if that passes, the candidate broke the check and has failed; otherwise there is no
    verdict. Optional keys of the result: reason_code of a fail, evidence.
    """

    def __init__(self, spec: VerifierSpec, backend: SandboxBackend) -> None:
        check_config(spec.config, CONFIG, "program")
        if not spec.program.strip():
            raise TaskError("verifier.program: is empty; it must define verify(episode)")
        try:
            compile(spec.program, "<verifier>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise TaskError(f"verifier.program: does not compile: {error}") from error
        self.spec = spec
        self.backend = backend
        self.pass_score = float(spec.config.get("pass_score", 1.0))
        if not 0.0 < self.pass_score <= 1.0:
            raise TaskError(f"verifier.config.pass_score: must be above 0 and at most 1, got {self.pass_score:g}")

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        try:
            return self._verdict(await self.score(task, episode))
        except NoResult as problem:
            return await self._assign_blame(task, problem)
        except WorkerError as error:
            return errored(ReasonCode.SANDBOX_UNAVAILABLE, str(error))

    async def score(self, task: TaskBundle, episode: FinishedEpisode) -> Score:
        """One run of the program. Raises NoResult, or WorkerError when there is no sandbox."""
        if sum(map(len, episode.files.values())) > MAX_EPISODE_BYTES:
            raise NoResult(ReasonCode.RESOURCE_LIMIT, f"the files exceed {MAX_EPISODE_BYTES} bytes")
        nonce = secrets.token_hex(16)
        arguments = {"program": self.spec.program, "episode": self._visible(task, episode), "nonce": nonce}
        limits = msgspec.structs.replace(task.contract.limits, output_bytes=64 * 2**10)
        sandbox = self.backend.create(EnvironmentContract(limits=limits, seed=task.contract.seed))
        try:
            await sandbox.start()
            done = await sandbox.run_python(
                HARNESS, function="call", arguments=arguments, timeout_seconds=limits.verify_timeout_seconds
            )
        finally:
            await sandbox.close()
        return read_result(done, nonce)

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
            }
        )
        return plain | {"files": {path: _text(data) for path, data in episode.files.items()}}

    def _verdict(self, result: Score) -> VerifierResult:
        if result.score >= self.pass_score:
            return passed(result.message, score=result.score, evidence=result.evidence)
        message = result.message or f"score {result.score:g} is below {self.pass_score:g}"
        return failed(result.reason, message, score=result.score, evidence=result.evidence)

    async def _assign_blame(self, task: TaskBundle, problem: NoResult) -> VerifierResult:
        """Run the reference in the same place: a check that works on it was broken by the candidate."""
        evidence = {"verifier": str(problem.reason), "detail": str(problem)[:MAX_MESSAGE]}
        try:
            reference = await self.score(task, await reference_episode(task, self.backend))
        except (NoResult, TaskError) as error:
            message = f"the verifier gave no result ({problem}) and none on the reference either ({error})"
            reason = problem.reason if problem.reason.startswith("VERIFIER_") else ReasonCode.VERIFIER_NO_RESULT
            return errored(reason, message[:MAX_MESSAGE], evidence=evidence)
        except WorkerError as error:
            return errored(ReasonCode.SANDBOX_UNAVAILABLE, str(error), evidence=evidence)
        if reference.score < self.pass_score:
            message = f"the verifier gave no result ({problem}) and fails the reference ({reference.score:g})"
            return errored(problem.reason, message[:MAX_MESSAGE], evidence=evidence)
        message = f"the check works on the reference, but the answer broke it: {problem}"
        return failed(_candidate_reason(problem.reason), message[:MAX_MESSAGE], evidence=evidence)


def read_result(done: ExecResult, nonce: str) -> Score:
    """The program's result from the private channel. Raises NoResult."""
    if done.timed_out:
        raise NoResult(ReasonCode.VERIFIER_TIMEOUT, f"no result within {done.duration_seconds:.1f} s")
    if done.limit_hit in ("memory", "cpu", "output"):
        raise NoResult(ReasonCode.VERIFIER_CRASH, f"the verifier was stopped at its {done.limit_hit} limit")
    if done.exit_code != 0:
        lines = done.stderr.strip().splitlines() or ["nothing in its error output"]
        raise NoResult(ReasonCode.VERIFIER_CRASH, f"the verifier ended with code {done.exit_code}: {lines[-1]}")
    try:
        envelope = json.loads(done.stdout)
        authentic = hmac.compare_digest(str(envelope["nonce"]).encode(), nonce.encode())
        result = envelope["result"]
    except (ValueError, KeyError, TypeError, RecursionError):
        _no_result("the verifier ended without handing over a result")
    if not authentic or not isinstance(result, dict):
        _no_result("the result does not carry this verification's nonce")
    score = result.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        _no_result(f"score must be a number, got {type(score).__name__}")
    if not math.isfinite(score) or not 0 <= score <= 1:
        _no_result(f"score must be between 0 and 1, got {score}")
    reason = result.get("reason_code", ReasonCode.WRONG_ANSWER)
    if reason not in PROGRAM_REASONS:
        _no_result(f"reason_code {reason!r} is not one of {', '.join(sorted(PROGRAM_REASONS))}")
    evidence = result.get("evidence", {})
    if not isinstance(evidence, dict) or len(json.dumps(evidence)) > MAX_EVIDENCE:
        evidence = {"note": "evidence was not an object or too large"}
    message = str(result.get("message", ""))[:MAX_MESSAGE]
    return Score(score=float(score), message=message, reason=ReasonCode(reason), evidence=evidence)


def _no_result(message: str) -> NoReturn:
    raise NoResult(ReasonCode.VERIFIER_NO_RESULT, message)


def _candidate_reason(reason: ReasonCode) -> ReasonCode:
    """What a candidate that broke the check is told."""
    if reason is ReasonCode.VERIFIER_TIMEOUT:
        return ReasonCode.AGENT_TIMEOUT
    return ReasonCode.RESOURCE_LIMIT if reason is ReasonCode.RESOURCE_LIMIT else ReasonCode.WRONG_ANSWER


def _text(data: bytes) -> str | bytes:
    """Text of a file; bytes where it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
