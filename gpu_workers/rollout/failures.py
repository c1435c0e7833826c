"""Who is to blame: turns errors and verifier results into the fields of an episode's record. Pure."""

from gpu_workers.contracts.enums import UNSCORED_VERDICTS, Boundary, ReasonCode, StopReason, Verdict, VerifierKind
from gpu_workers.contracts.groups import EpisodeRecord, VerdictRecord
from gpu_workers.contracts.seams import VerifierResult, WorkerError
from gpu_workers.verifiers.results import REASON_OF_BOUNDARY, errored, unavailable, unsound

_BOUNDARY_OF_REASON = {
    ReasonCode.ENGINE_ERROR: Boundary.ENGINE,
    ReasonCode.SANDBOX_UNAVAILABLE: Boundary.INFRASTRUCTURE,
    ReasonCode.TASK_INVALID: Boundary.ENVIRONMENT,
}
_REASON_OF_STOP = {
    StopReason.TURN_LIMIT: (ReasonCode.TURN_LIMIT, "the turn limit was reached without an answer"),
    StopReason.LENGTH: (ReasonCode.FORMAT_INVALID, "the last turn ran into the token limit before it ended"),
}


def blame(record: EpisodeRecord, error: WorkerError) -> None:
    """No verdict because a part outside the policy failed: the reward is null, never 0."""
    # A policy cannot cause a WorkerError: what bears its name here is a task that asks for the impossible.
    boundary = Boundary.ENVIRONMENT if error.boundary is Boundary.POLICY else error.boundary
    _without_verdict(record, Verdict.ERROR, REASON_OF_BOUNDARY[boundary], boundary, str(error))


def blame_deadline(record: EpisodeRecord) -> None:
    """The group's deadline passed while the episode waited or ran."""
    message = "the group's deadline passed before the episode ended"
    _without_verdict(record, Verdict.ERROR, ReasonCode.ENGINE_ERROR, Boundary.INFRASTRUCTURE, message)


def apply_timeout(record: EpisodeRecord) -> None:
    """The policy used up its own time: a scored failure that no verifier is asked about, so that none can pass it."""
    record.verdict, record.reward, record.success = Verdict.FAIL, 0.0, False
    record.reason_code, record.boundary = ReasonCode.AGENT_TIMEOUT, Boundary.POLICY
    record.message = "the tools used up the episode's time"


def apply_verdict(record: EpisodeRecord, result: VerifierResult) -> None:
    """Copy a verifier's result. One that contradicts itself, or whose score is none, is no verdict."""
    result = sound(result)
    record.evidence = dict(result.evidence)
    verdict, reason = Verdict(result.verdict), ReasonCode(result.reason_code)
    if verdict in UNSCORED_VERDICTS:
        boundary = _BOUNDARY_OF_REASON.get(reason, Boundary.VERIFIER)
        _without_verdict(record, verdict, reason, boundary, result.message)
        return
    record.verdict = verdict
    record.reward = result.score
    record.success = verdict is Verdict.PASS
    record.reason_code = reason
    record.message = result.message
    record.boundary = None if record.success else Boundary.POLICY
    if not record.success and record.stop_reason in _REASON_OF_STOP and reason is not ReasonCode.TAMPER_DETECTED:
        record.reason_code, record.message = _REASON_OF_STOP[record.stop_reason]


def sound(result: VerifierResult) -> VerifierResult:
    """The result, or an error in its place when it cannot be one."""
    if problem := unsound(result):
        return errored(ReasonCode.VERIFIER_NO_RESULT, f"the verifier's result cannot be used: {problem}")
    return result


def verdict_record(kind: VerifierKind, result: VerifierResult | WorkerError) -> VerdictRecord:
    """What is kept of one verifier's word, whether or not it decides the reward."""
    said = sound(unavailable(result) if isinstance(result, WorkerError) else result)
    return VerdictRecord(
        kind=kind,
        verdict=Verdict(said.verdict),
        score=said.score,
        reason_code=ReasonCode(said.reason_code),
        message=said.message,
        evidence=dict(said.evidence),
        components=list(said.components),
        verifier_hash=said.verifier_hash,
        nonce=said.nonce,
        isolation=said.isolation,
        limits_hit=list(said.limits_hit),
        duration_seconds=said.duration_seconds,
    )


def _without_verdict(
    record: EpisodeRecord, verdict: Verdict, reason: ReasonCode, boundary: Boundary, message: str
) -> None:
    record.verdict = verdict
    record.reward = None
    record.success = False
    record.reason_code = reason
    record.boundary = boundary
    record.message = message
