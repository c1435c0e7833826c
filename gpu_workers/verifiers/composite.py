"""Verifier made of others: all must pass; with partial credit the scores are weighted."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_workers.contracts.enums import UNSCORED_VERDICTS, ReasonCode, Verdict
from gpu_workers.contracts.groups import ComponentRecord
from gpu_workers.contracts.seams import FinishedEpisode, Verifier, VerifierResult
from gpu_workers.contracts.tasks import TaskBundle, VerifierPart, VerifierSpec
from gpu_workers.verifiers.detectors.runtime import SEEN
from gpu_workers.verifiers.results import TaskError, VerifierConfig, read_config

MAX_PARTS = 20


class CompositeConfig(VerifierConfig, frozen=True, kw_only=True):
    partial: bool = False  # a fail earns the weighted mean of the parts' scores; 0 where a part of weight 0 fails


@dataclass(frozen=True)
class Part:
    name: str
    weight: float
    verifier: Verifier


class CompositeVerifier:
    """Runs its parts at once, each with its own memory and blame. The first part that fails gives the reason.

    A part without a verdict leaves the whole without one: its score is not known.
    """

    def __init__(self, spec: VerifierSpec, parts: Sequence[Part]) -> None:
        self.partial = read_config(spec, CompositeConfig).partial
        self.parts = list(parts)

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        results = await asyncio.gather(*(part.verifier.verify(task, episode) for part in self.parts))
        judged = list(zip(self.parts, results, strict=True))
        components = tuple(_component(part, result) for part, result in judged)
        unscored = next(((part, r) for part, r in judged if r.verdict in UNSCORED_VERDICTS), None)
        decisive = unscored or next(((part, r) for part, r in judged if r.verdict != Verdict.PASS), None)
        limits = tuple(dict.fromkeys(limit for r in results for limit in r.limits_hit))
        seen = _seen(results)
        if decisive is None:
            message = "; ".join(f"{part.name}: {r.message}" for part, r in judged if r.message)
            return VerifierResult(
                Verdict.PASS, 1.0, ReasonCode.OK, message[:1000], evidence=seen, components=components,
                limits_hit=limits,
            )  # fmt: skip
        part, result = decisive
        return VerifierResult(
            verdict=result.verdict,
            score=None if unscored else self._score(judged),
            reason_code=result.reason_code,
            message=f"{part.name}: {result.message}"[:1000],
            evidence={"part": part.name, **result.evidence, **seen},
            components=components,
            limits_hit=limits,
        )

    def _score(self, judged: Sequence[tuple[Part, VerifierResult]]) -> float:
        """Of a fail."""
        if not self.partial or any(not part.weight and r.verdict != Verdict.PASS for part, r in judged):
            return 0.0
        total = sum(part.weight for part, _ in judged)
        return sum(part.weight * (r.score or 0.0) for part, r in judged) / total


def read_parts(spec: VerifierSpec) -> list[VerifierPart]:
    """The parts, each with its own answer out of `expected` (an object by part). Raises TaskError."""
    names = [part.name for part in spec.parts]
    if not 1 <= len(names) <= MAX_PARTS or len(set(names)) < len(names) or not all(names):
        raise TaskError(f"verifier.parts: needs 1 to {MAX_PARTS} parts with names of their own, got {names}")
    if any(not 0 <= part.weight <= 1e6 for part in spec.parts) or not sum(part.weight for part in spec.parts):
        raise TaskError("verifier.parts: a weight is 0 or more, and one of them above 0")
    expected = {} if spec.expected is None else spec.expected
    if not isinstance(expected, dict) or not set(expected) <= set(names):
        raise TaskError(f"verifier.expected: must be an object by part; the parts are {', '.join(names)}")
    return [
        msgspec.structs.replace(part, verifier=msgspec.structs.replace(part.verifier, expected=expected[part.name]))
        if part.name in expected
        else part
        for part in spec.parts
    ]


def _seen(results: Sequence[VerifierResult]) -> dict[str, Any]:
    """What code of the candidate was seen doing in any part, whichever decides."""
    seen: dict[str, list[str]] = {}
    for result in results:
        for kind, whats in result.evidence.get(SEEN, {}).items():
            known = seen.setdefault(kind, [])
            known += [what for what in whats if what not in known]
    return {SEEN: seen} if seen else {}


def _component(part: Part, result: VerifierResult) -> ComponentRecord:
    return ComponentRecord(
        name=part.name,
        verdict=Verdict(result.verdict),
        score=result.score,
        weight=part.weight,
        reason_code=ReasonCode(result.reason_code),
        message=result.message,
        duration_seconds=result.duration_seconds,
    )
