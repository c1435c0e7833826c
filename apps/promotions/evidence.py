"""What a gate judges: attempts of two arms at the same tasks, paired. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    """One episode with a verdict. An episode without one is missing and is not listed."""

    task: str
    success: bool
    invalid_call: bool = False  # at least one call that the environment refused as malformed
    tamper: bool = False
    seconds: float = 0.0  # an episode that hit its limit counts the limit
    tokens: int = 0  # prompt and answer, all turns
    turns: int = 0


@dataclass(frozen=True)
class VerifierQuality:
    """Weighted disagreement of verifier and people, a share with its 95 % interval."""

    num_labels: int
    disagreement: float
    low: float
    high: float


@dataclass(frozen=True)
class Evidence:
    """Both arms on `tasks` (task to cluster), `samples` attempts each were planned."""

    tasks: Mapping[str, str]
    samples: int
    incumbent: tuple[Attempt, ...]
    candidate: tuple[Attempt, ...]
    verifier: VerifierQuality | None = None

    @property
    def num_planned(self) -> int:
        return len(self.tasks) * self.samples


@dataclass(frozen=True)
class Pairs:
    """Values of the tasks that both arms have, in one order."""

    tasks: list[str]
    clusters: list[str]
    incumbent: list[float]
    candidate: list[float]

    @property
    def differences(self) -> list[float]:
        return [after - before for before, after in zip(self.incumbent, self.candidate, strict=True)]


def by_task(attempts: tuple[Attempt, ...]) -> dict[str, list[Attempt]]:
    """Attempts of each task."""
    grouped: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        grouped.setdefault(attempt.task, []).append(attempt)
    return grouped


def pair(evidence: Evidence, value: Callable[[Attempt], float]) -> Pairs:
    """Mean of a value per task and arm; tasks that lack an arm are left out."""
    incumbent, candidate = by_task(evidence.incumbent), by_task(evidence.candidate)
    tasks = [task for task in evidence.tasks if task in incumbent and task in candidate]

    def means(arm: dict[str, list[Attempt]]) -> list[float]:
        return [sum(value(attempt) for attempt in arm[task]) / len(arm[task]) for task in tasks]

    return Pairs(tasks, [evidence.tasks[task] for task in tasks], means(incumbent), means(candidate))


def pair_worst_case(evidence: Evidence) -> Pairs:
    """Success with every missing attempt counted against the candidate: its own fail, the incumbent's pass."""
    incumbent, candidate = by_task(evidence.incumbent), by_task(evidence.candidate)

    def share(arm: dict[str, list[Attempt]], task: str, missing: float) -> float:
        found = arm.get(task, [])
        lacking = max(0, evidence.samples - len(found))
        return (sum(attempt.success for attempt in found) + missing * lacking) / (len(found) + lacking)

    tasks = list(evidence.tasks)
    return Pairs(
        tasks,
        [evidence.tasks[task] for task in tasks],
        [share(incumbent, task, 1.0) for task in tasks],
        [share(candidate, task, 0.0) for task in tasks],
    )


def mean(values: list[float]) -> float:
    """Mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
