"""How often a verifier is wrong, with intervals, from the outcomes of a measurement. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from apps.evaluations.rare_rates import clustered_rate
from apps.evaluations.statistics import Interval, wilson
from apps.tasks.measurements.models import Truth
from apps.tasks.measurements.selectors import Outcome
from gpu_workers.contracts.enums import Verdict


@dataclass(frozen=True)
class ErrorRate:
    """A share with 95 % intervals: `wilson` takes candidates as independent, `clustered` (Korn & Graubard) lets those
    of one task resemble each other."""

    count: int
    n: int
    num_tasks: int
    wilson: Interval
    clustered: Interval

    @property
    def estimate(self) -> float | None:
        return self.count / self.n if self.n else None


@dataclass(frozen=True)
class OperatorRow:
    """Candidates of one origin: how many are wrong, and how many of those the verifier passes."""

    origin: str
    num_candidates: int
    rate: ErrorRate


@dataclass(frozen=True)
class VerifierErrors:
    """`false_pass`: passed, of what is wrong; `false_fail`: failed, of what is right; `wrong_among_passed`: of what it
    passes, what is wrong. `false_pass_by_value`: the first where another type alone, as 1.0 for 1, counts as right.
    `tasks_misjudged`: tasks on which any candidate is judged wrongly."""

    num_candidates: int
    num_tasks: int
    num_undecided: int  # no truth, or no verdict; in no rate
    false_pass: ErrorRate
    false_fail: ErrorRate
    wrong_among_passed: ErrorRate
    false_pass_by_value: ErrorRate
    tasks_misjudged: ErrorRate
    operators: list[OperatorRow]
    differences: dict[str, int]  # of the false passes, by kind


def estimate_errors(outcomes: Sequence[Outcome]) -> VerifierErrors:
    """Every rate over the candidates that have both a verdict and a truth."""
    decided = [o for o in outcomes if o.truth != Truth.UNDECIDED and o.verdict in (Verdict.PASS, Verdict.FAIL)]
    wrong = [o for o in decided if o.truth == Truth.WRONG]
    by_value = [o for o in wrong if o.difference != "type"]
    tasks: dict[str, bool] = defaultdict(bool)
    for outcome in decided:
        tasks[outcome.task] |= _misjudged(outcome)
    misjudged = [int(value) for value in tasks.values()]
    return VerifierErrors(
        num_candidates=len(outcomes),
        num_tasks=len({o.task for o in outcomes}),
        num_undecided=len(outcomes) - len(decided),
        false_pass=_rate(wrong, _passed),
        false_fail=_rate([o for o in decided if o.truth == Truth.RIGHT], lambda o: not _passed(o)),
        wrong_among_passed=_rate([o for o in decided if _passed(o)], lambda o: o.truth == Truth.WRONG),
        false_pass_by_value=_rate(by_value, _passed),
        tasks_misjudged=ErrorRate(
            sum(misjudged),
            len(tasks),
            len(tasks),
            wilson(sum(misjudged), len(tasks)),
            clustered_rate(misjudged, [1] * len(misjudged)),
        ),
        operators=_operators(decided),
        differences=dict(Counter(o.difference for o in wrong if _passed(o)).most_common()),
    )


def _passed(outcome: Outcome) -> bool:
    return outcome.verdict == Verdict.PASS


def _misjudged(outcome: Outcome) -> bool:
    return _passed(outcome) == (outcome.truth == Truth.WRONG)


def _rate(among: Sequence[Outcome], counts: Callable[[Outcome], bool]) -> ErrorRate:
    hits: Counter[str] = Counter(outcome.task for outcome in among if counts(outcome))
    sizes = Counter(outcome.task for outcome in among)
    count, n = hits.total(), sizes.total()
    clustered = clustered_rate([hits[task] for task in sizes], list(sizes.values()))
    return ErrorRate(count, n, len(sizes), wilson(count, n), clustered)


def _operators(decided: Sequence[Outcome]) -> list[OperatorRow]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in decided:
        groups[outcome.origin].append(outcome)
    rows = [
        OperatorRow(origin, len(members), _rate([o for o in members if o.truth == Truth.WRONG], _passed))
        for origin, members in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.num_candidates, row.origin))
