"""Which stored episodes people are asked to judge, and with what probability. Pure."""

import hashlib
from dataclasses import dataclass
from uuid import UUID

RANDOM_SLICE_TRAINING = 0.02
RANDOM_SLICE_EVALUATION = 0.05
# Strata drawn whole, and why; all ahead of most of the random slice, the first two ahead of the third.
_ALL_OF = {"tamper": "tamper flag", "disputed": "the audit verifier disagrees", "suspected": "passed under suspicion"}
_AHEAD = {"tamper": 0.0, "disputed": 0.0, "suspected": 0.25}
_SPAN = 2**64


@dataclass(frozen=True)
class Candidate:
    """What decides whether an episode is sampled. `policy_kind`: prompt, supervised or reinforced.

    `audit_verdict`: of the audit verifier, empty where it did not look. `suspected`: detectors saw what counts as no
    attempt by itself.
    """

    episode_id: UUID
    verdict: str
    audit_verdict: str
    tamper: bool
    policy_kind: str
    training: bool
    suspected: bool = False


@dataclass(frozen=True)
class Draw:
    """An episode that was drawn. `position`: the smaller, the earlier it is offered."""

    stratum: str
    inclusion_probability: float
    why: str
    position: float


def draw(candidate: Candidate) -> Draw | None:
    """Draw the episode, or not. The same episode always gives the same answer, so repeating adds nothing."""
    if candidate.verdict not in ("pass", "fail"):
        return None
    source = "training" if candidate.training else "evaluation"
    disputed = candidate.audit_verdict in ("pass", "fail") and candidate.audit_verdict != candidate.verdict
    suspected = candidate.suspected and candidate.verdict == "pass"  # a fail has nothing that was not earned
    flag = "tamper" if candidate.tamper else "disputed" if disputed else "suspected" if suspected else "clean"
    stratum = f"{candidate.verdict}|{flag}|{candidate.policy_kind}|{source}"
    if flag in _ALL_OF:
        position = _AHEAD[flag] + 0.25 * uniform(candidate.episode_id, "position")  # in random order among themselves
        return Draw(stratum, 1.0, _ALL_OF[flag], position)
    probability = RANDOM_SLICE_TRAINING if candidate.training else RANDOM_SLICE_EVALUATION
    if uniform(candidate.episode_id, "slice") >= probability:
        return None
    return Draw(stratum, probability, "random slice", uniform(candidate.episode_id, "position"))


def uniform(episode_id: UUID, purpose: str) -> float:
    """A number in [0, 1) that is independent of everything about the episode but its id."""
    digest = hashlib.sha256(f"{purpose}:{episode_id}".encode()).digest()
    return int.from_bytes(digest[:8]) / _SPAN
