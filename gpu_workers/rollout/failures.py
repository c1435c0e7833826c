"""Who is to blame: turns errors and verifier results into the fields of an episode's record. Pure."""

import math

from gpu_workers.contracts.enums import Boundary, ReasonCode, StopReason, Verdict
from gpu_workers.contracts.groups import EpisodeRecord
from gpu_workers.contracts.seams import VerifierResult, WorkerError

_REASON_OF_BOUNDARY = {
    Boundary.ENGINE: ReasonCode.ENGINE_ERROR,
    Boundary.VERIFIER: ReasonCode.VERIFIER_CRASH,
    Boundary.ENVIRONMENT: ReasonCode.TASK_INVALID,
    Boundary.INFRASTRUCTURE: ReasonCode.SANDBOX_UNAVAILABLE,
}
_BOUNDARY_OF_REASON = {
    ReasonCode.ENGINE_ERROR: Boundary.ENGINE,
    ReasonCode.SANDBOX_UNAVAILABLE: Boundary.INFRASTRUCTURE,
    ReasonCode.TASK_INVALID: Boundary.ENVIRONMENT,
}
_REASON_OF_STOP = {
    StopReason.TURN_LIMIT: (ReasonCode.TURN_LIMIT, "the turn limit was reached without an answer"),
    StopReason.TIMEOUT: (ReasonCode.AGENT_TIMEOUT, "the tools used up the episode's time"),
    StopReason.LENGTH: (ReasonCode.FORMAT_INVALID, "the last turn ran into the token limit before it ended"),
}


def blame(record: EpisodeRecord, error: WorkerError) -> None:
    """No verdict because a part outside the policy failed: the reward is null, never 0."""
    # A policy cannot cause a WorkerError: what bears its name here is a task that asks for the impossible.
    boundary = Boundary.ENVIRONMENT if error.boundary is Boundary.POLICY else error.boundary
    _without_verdict(record, _REASON_OF_BOUNDARY[boundary], boundary, str(error))


def blame_deadline(record: EpisodeRecord) -> None:
    """The group's deadline passed while the episode waited or ran."""
    message = "the group's deadline passed before the episode ended"
    _without_verdict(record, ReasonCode.ENGINE_ERROR, Boundary.INFRASTRUCTURE, message)


def apply_verdict(record: EpisodeRecord, result: VerifierResult) -> None:
    """Copy a verifier's result, after refusing a score that is none."""
    record.evidence = dict(result.evidence)
    reason = ReasonCode(result.reason_code)
    if result.verdict == Verdict.ERROR or result.score is None:
        boundary = _BOUNDARY_OF_REASON.get(reason, Boundary.VERIFIER)
        _without_verdict(record, reason, boundary, result.message)
        return
    if not math.isfinite(result.score) or not 0.0 <= result.score <= 1.0:
        message = f"the verifier returned the score {result.score}; it must lie between 0 and 1"
        _without_verdict(record, ReasonCode.VERIFIER_NO_RESULT, Boundary.VERIFIER, message)
        return
    record.verdict = Verdict(result.verdict)
    record.reward = result.score
    record.success = record.verdict is Verdict.PASS
    record.reason_code = reason
    record.message = result.message
    record.boundary = None if record.success else Boundary.POLICY
    if not record.success and record.stop_reason in _REASON_OF_STOP and reason is not ReasonCode.TAMPER_DETECTED:
        record.reason_code, record.message = _REASON_OF_STOP[record.stop_reason]


def _without_verdict(record: EpisodeRecord, reason: ReasonCode, boundary: Boundary, message: str) -> None:
    record.verdict = Verdict.ERROR
    record.reward = None
    record.success = False
    record.reason_code = reason
    record.boundary = boundary
    record.message = message
