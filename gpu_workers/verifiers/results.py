"""The three verdicts as constructors, and the errors of a task that cannot be judged."""

import math
from collections.abc import Mapping
from typing import Any

from gpu_workers.contracts.enums import ReasonCode, Verdict
from gpu_workers.contracts.seams import VerifierResult


class TaskError(ValueError):
    """The task's own verifier block is wrong; no answer can be judged by it."""


def passed(message: str = "", *, score: float = 1.0, evidence: Mapping[str, Any] | None = None) -> VerifierResult:
    return _scored(Verdict.PASS, score, ReasonCode.OK, message, evidence)


def failed(
    reason: ReasonCode, message: str, *, score: float = 0.0, evidence: Mapping[str, Any] | None = None
) -> VerifierResult:
    return _scored(Verdict.FAIL, score, reason, message, evidence)


def errored(reason: ReasonCode, message: str, *, evidence: Mapping[str, Any] | None = None) -> VerifierResult:
    """No verdict and no score: the answer was not judged."""
    return VerifierResult(Verdict.ERROR, None, reason, storable(message), storable(dict(evidence or {})))


def _scored(
    verdict: Verdict, score: float, reason: ReasonCode, message: str, evidence: Mapping[str, Any] | None
) -> VerifierResult:
    if not math.isfinite(score) or not 0.0 <= score <= 1.0:
        raise ValueError(f"a score is between 0 and 1, got {score}")
    return VerifierResult(verdict, score, reason, storable(message), storable(dict(evidence or {})))


def storable(value: Any) -> Any:
    """The value without NUL characters and lone surrogates, which JSON documents and databases refuse."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def check_config(config: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]], kind: str) -> None:
    """Refuse unknown or mistyped settings of a verifier. Raises TaskError naming the setting."""
    for name, value in config.items():
        if name not in known:
            raise TaskError(
                f"verifier.config.{name}: unknown for kind {kind!r}; known are {', '.join(known) or 'none'}"
            )
        wanted = known[name]
        wants_bool = wanted is bool
        if not isinstance(value, wanted) or (isinstance(value, bool) and not wants_bool):
            raise TaskError(f"verifier.config.{name}: has the wrong type {type(value).__name__}")
