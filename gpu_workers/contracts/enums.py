"""Vocabulary shared by both planes: splits, verdicts, reasons, boundaries, outcomes."""

from enum import StrEnum


class Split(StrEnum):
    """Disjoint parts of a suite."""

    TRAIN = "train"
    DEV = "dev"  # checkpoint selection
    HELDOUT = "heldout"  # promotion gate only
    REGRESSION = "regression"  # replayed after every promotion


class Purpose(StrEnum):
    """Why a group of episodes is generated."""

    TRAIN = "train"
    EVALUATION = "evaluation"


class Verdict(StrEnum):
    """What a verifier says of a finished episode."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    ERROR = "error"  # no verdict: the reward is null, never 0
    QUARANTINED = "quarantined"  # the verifier contradicts itself: no verdict, the reward is null, the task is suspect


UNSCORED_VERDICTS = frozenset({Verdict.ERROR, Verdict.QUARANTINED})


class ReasonCode(StrEnum):
    """Why the verdict is what it is. The second block has no reward."""

    OK = "OK"
    WRONG_ANSWER = "WRONG_ANSWER"
    NO_OUTPUT = "NO_OUTPUT"
    FORMAT_INVALID = "FORMAT_INVALID"
    AGENT_TIMEOUT = "AGENT_TIMEOUT"
    TURN_LIMIT = "TURN_LIMIT"
    RESOURCE_LIMIT = "RESOURCE_LIMIT"
    TAMPER_DETECTED = "TAMPER_DETECTED"
    FORBIDDEN_ACCESS = "FORBIDDEN_ACCESS"

    VERIFIER_TIMEOUT = "VERIFIER_TIMEOUT"
    VERIFIER_CRASH = "VERIFIER_CRASH"
    VERIFIER_NO_RESULT = "VERIFIER_NO_RESULT"
    VERIFIER_FLAKY = "VERIFIER_FLAKY"
    SANDBOX_UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    ENGINE_ERROR = "ENGINE_ERROR"
    TASK_INVALID = "TASK_INVALID"


NO_REWARD_REASONS = frozenset(
    {
        ReasonCode.VERIFIER_TIMEOUT, ReasonCode.VERIFIER_CRASH, ReasonCode.VERIFIER_NO_RESULT,
        ReasonCode.VERIFIER_FLAKY, ReasonCode.SANDBOX_UNAVAILABLE, ReasonCode.ENGINE_ERROR, ReasonCode.TASK_INVALID,
    }
)  # fmt: skip
TAMPER_REASONS = frozenset({ReasonCode.TAMPER_DETECTED, ReasonCode.FORBIDDEN_ACCESS})


class FlagSeverity(StrEnum):
    """What a tamper flag means for its episode."""

    SUSPICION = "suspicion"  # for people to look at; nothing follows
    ATTEMPT = "attempt"  # counts as reward hacking; the verdict stays the verifier's
    TAMPER = "tamper"  # counts as reward hacking, and the episode fails


class Boundary(StrEnum):
    """Whose failure it was."""

    POLICY = "policy"
    ENVIRONMENT = "environment"
    VERIFIER = "verifier"
    ENGINE = "engine"
    INFRASTRUCTURE = "infrastructure"


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"  # a turn without a tool call
    TURN_LIMIT = "turn_limit"
    LENGTH = "length"  # token limit of the turn or the context
    TIMEOUT = "timeout"
    ERROR = "error"  # infrastructure; the episode has no reward


class ToolOutcome(StrEnum):
    """What became of a tool call; whether it succeeded is said apart."""

    REFUSED = "refused"  # not executed: unknown tool, malformed call, arguments against the schema
    RAN = "ran"  # to its own end, well or badly
    TIMED_OUT = "timed_out"
    LIMIT = "limit"  # ended by a limit of its sandbox
    SIGNAL = "signal"  # ended by a signal that no limit sent
    ENDED_SANDBOX = "ended_sandbox"  # took its sandbox with it, and did so again in a fresh one


class GroupOutcome(StrEnum):
    """The ledger: every admitted training group ends in exactly one of these."""

    TRAINED = "trained"
    STALE = "stale"
    ZERO_VARIANCE = "zero_variance"
    INFRASTRUCTURE_FAILED = "infrastructure_failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    SCORED = "scored"  # evaluation groups only


class VerifierKind(StrEnum):
    """Built-in verifiers."""

    EXACT = "exact"  # normalised text equality with one of the accepted answers
    NUMBER = "number"  # last number of the answer within a tolerance
    TOOL_CALL = "tool_call"  # structured function call against accepted values
    PROGRAM = "program"  # a Python program in its own sandbox
    TESTS = "tests"  # a pytest-style test suite in its own sandbox, the candidate's code in a process apart
    SCRIPT = "script"  # a test script over the workspace that leaves a reward file, as Harbor's tasks have it
    COMPOSITE = "composite"  # several verifiers: all must pass, their scores are weighted
    EQUIVALENCE = "equivalence"  # a function beside the reference on mutated inputs, each in a sandbox of its own
    ENVIRONMENT = "environment"  # the reward of a third-party environment, by playing the episode again in a fresh one
    JUDGE = "judge"  # a language model's opinion, through an OpenAI-compatible endpoint
