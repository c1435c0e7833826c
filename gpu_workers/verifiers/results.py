"""The verdicts as constructors, what makes a result sound, and the two ways in which there is none."""

import functools
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpu_workers.contracts.enums import NO_REWARD_REASONS, UNSCORED_VERDICTS, Boundary, ReasonCode, Verdict
from gpu_workers.contracts.seams import VerifierResult, WorkerError
from gpu_workers.contracts.tasks import VerifierSpec
from gpu_workers.contracts.text import storable

REASON_OF_BOUNDARY = {
    Boundary.ENGINE: ReasonCode.ENGINE_ERROR,
    Boundary.VERIFIER: ReasonCode.VERIFIER_CRASH,
    Boundary.ENVIRONMENT: ReasonCode.TASK_INVALID,
    Boundary.INFRASTRUCTURE: ReasonCode.SANDBOX_UNAVAILABLE,
    # A policy cannot cause a WorkerError: what bears its name is a task that asks for the impossible.
    Boundary.POLICY: ReasonCode.TASK_INVALID,
}


class VerifierConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of one kind of verifier; a subclass is its schema."""


Config = TypeVar("Config", bound=VerifierConfig)


class TaskError(ValueError):
    """The task's own verifier block is wrong; no answer can be judged by it."""


class NoResult(Exception):
    """A verifier gave no sound result on an episode; whose fault that is remains to be found out.

    `reason` stands when it is the verifier's, `if_candidate` when it is the answer's; `evidence` goes with the latter.
    """

    def __init__(
        self, reason: ReasonCode, message: str, *, if_candidate: ReasonCode = ReasonCode.WRONG_ANSWER,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.reason = reason
        self.evidence = dict(evidence or {})
        self.if_candidate = ReasonCode.AGENT_TIMEOUT if reason is ReasonCode.VERIFIER_TIMEOUT else if_candidate


class SandboxDied(NoResult):
    """The verifier's sandbox ended under it, as far as can be told by the host's doing; another try tells.

    Where what ran inside has ended it, there is a NoResult like any other, and no other try.
    """


def passed(message: str = "", *, score: float = 1.0, evidence: Mapping[str, Any] | None = None) -> VerifierResult:
    return _scored(Verdict.PASS, score, ReasonCode.OK, message, evidence)


def failed(
    reason: ReasonCode, message: str, *, score: float = 0.0, evidence: Mapping[str, Any] | None = None
) -> VerifierResult:
    return _scored(Verdict.FAIL, score, reason, message, evidence)


def errored(reason: ReasonCode, message: str, *, evidence: Mapping[str, Any] | None = None) -> VerifierResult:
    """No verdict and no score: the answer was not judged."""
    return VerifierResult(Verdict.ERROR, None, reason, storable(message), storable(dict(evidence or {})))


def quarantined(message: str, *, evidence: Mapping[str, Any] | None = None) -> VerifierResult:
    """No verdict and no score: the verifier contradicts itself on this episode."""
    kept = storable(dict(evidence or {}))
    return VerifierResult(Verdict.QUARANTINED, None, ReasonCode.VERIFIER_FLAKY, storable(message), kept)


def unavailable(error: WorkerError) -> VerifierResult:
    """No verdict because a part outside the verifier failed."""
    return errored(REASON_OF_BOUNDARY[error.boundary], str(error))


def _scored(
    verdict: Verdict, score: float, reason: ReasonCode, message: str, evidence: Mapping[str, Any] | None
) -> VerifierResult:
    if not is_score(score):
        raise ValueError(f"a score is between 0 and 1, got {score}")
    return VerifierResult(verdict, score, reason, storable(message), storable(dict(evidence or {})))


def is_score(score: Any) -> bool:
    """Whether it is a finite number from 0 to 1; a bool is none."""
    return type(score) in (int, float) and math.isfinite(score) and 0.0 <= score <= 1.0


def unsound(result: VerifierResult) -> str:
    """What contradicts itself in a result; empty when it can be used."""
    try:
        verdict, reason = Verdict(result.verdict), ReasonCode(result.reason_code)
    except ValueError as error:
        return str(error)
    if verdict in UNSCORED_VERDICTS:
        if result.score is not None:
            return f"verdict {verdict} with the score {result.score}"
        return "" if reason in NO_REWARD_REASONS else f"verdict {verdict} for the reason {reason}"
    if not is_score(result.score):
        return f"the score {result.score} is not a number from 0 to 1"
    if (verdict is Verdict.PASS) != (reason is ReasonCode.OK) or reason in NO_REWARD_REASONS:
        return f"verdict {verdict} for the reason {reason}"
    return ""


def verifier_hash(spec: VerifierSpec) -> str:
    """SHA-256 of what gives a suite's verdicts: what its tasks share of their verifier, and the code that judges."""
    return hashlib.sha256(msgspec.json.encode(_shared(spec), order="sorted") + judging_code()).hexdigest()


@functools.cache
def judging_code() -> bytes:
    """SHA-256 of the source of this package: verdicts of two releases are told apart even where no suite changed."""
    package, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.digest()


def _shared(spec: VerifierSpec) -> VerifierSpec:
    parts = [msgspec.structs.replace(part, verifier=_shared(part.verifier)) for part in spec.parts]
    return msgspec.structs.replace(spec, expected=None, parts=parts)


def read_config(spec: VerifierSpec, kind: type[Config]) -> Config:
    """The settings of a verifier by their schema. Raises TaskError naming the one that is wrong."""
    try:
        return msgspec.convert(spec.config, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        if unknown := re.search(r"unknown field `(.+)`", message):
            known = ", ".join(kind.__struct_fields__) or "none"
            where, message = unknown[1], f"unknown for kind {str(spec.kind)!r}; known are {known}"
        elif missing := re.search(r"missing required field `(.+)`", message):
            where, message = missing[1], "is missing"
        else:
            where = path.rstrip("`")
        raise TaskError(f"verifier.config.{where}: {message}") from error
