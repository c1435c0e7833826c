"""The gap between a suite's two verifiers: how often the audit fails what the training verifier passed.

It is the first measure of reward hacking: a policy that learns to please the verifier without doing the task widens it.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Case, Count, F, Q, QuerySet, When

from apps.accounts.permissions import Actor, Permission, has_permission
from apps.evaluations.rare_rates import clustered_rate
from apps.runs.models import UNSCORED, Episode
from apps.runs.selectors import visible_episodes
from apps.tasks.models import Suite

MAX_EXAMPLES = 20


@dataclass(frozen=True)
class Gap:
    """One policy. `rate`: share of the passed episodes that the audit fails, with a 95 % interval over task clusters.

    Counts are of episodes that both verifiers judged, `num_undecided` aside: there one of them had no verdict.
    """

    source: str  # training | evaluation
    label: str  # the policy, or the run and its version
    run_id: UUID | None
    n: int
    num_passed: int
    num_gap: int  # passed, and the audit fails
    num_reverse: int  # failed, and the audit passes
    num_undecided: int
    num_clusters: int  # of the passed ones
    rate: float | None  # None: nothing passed
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SuiteGap:
    """`examples`: the newest false passes that the reader may open; `num_examples`: all of those."""

    rows: list[Gap] = field(default_factory=list)
    examples: list[Episode] = field(default_factory=list)
    num_examples: int = 0


_SUBJECT = (
    "group__run_id",
    "group__run__number",
    "group__run__name",
    "group__evaluation_item__arm__policy__slug",
    "group__evaluation_item__arm__checkpoint__run__number",
    "group__evaluation_item__arm__checkpoint__version",
)


def suite_gap(user: Actor, suite: Suite) -> SuiteGap:
    """What was measured on a suite that the reader may see; runs and evaluations only for who may read those."""
    episodes = Episode.objects.filter(group__task__suite=suite).exclude(audit_verdict="")
    if not has_permission(user, Permission.RUN_READ, suite.project):
        episodes = episodes.filter(group__run=None)
    if not has_permission(user, Permission.EVALUATION_READ, suite.project):
        episodes = episodes.exclude(group__run=None)
    false_passes = visible_episodes(user).filter(_GAP, group__task__suite=suite)
    return SuiteGap(_rows(episodes), list(false_passes[:MAX_EXAMPLES]), false_passes.count())


_DECIDED = ~Q(verdict__in=UNSCORED) & ~Q(audit_verdict__in=["", *UNSCORED])
_GAP = Q(verdict="pass", audit_verdict="fail")


def _rows(episodes: QuerySet[Episode]) -> list[Gap]:
    """Counted in the database by subject and cluster, summed here."""
    cluster = Case(When(group__task__cluster="", then=F("group__task__key")), default=F("group__task__cluster"))
    counted = (
        episodes.annotate(unit=cluster)
        .values(*_SUBJECT, "unit")
        .annotate(
            decided=Count("id", filter=_DECIDED),
            undecided=Count("id", filter=~_DECIDED),
            passed=Count("id", filter=_DECIDED & Q(verdict="pass")),
            gap=Count("id", filter=_GAP),
            reverse=Count("id", filter=Q(verdict="fail", audit_verdict="pass")),
        )
        .order_by()
    )
    subjects: dict[tuple[str, str, UUID | None], list[dict[str, Any]]] = defaultdict(list)
    for row in counted:
        subjects[_subject(row)].append(row)
    gaps = [_gap(subject, rows) for subject, rows in subjects.items()]
    return sorted(gaps, key=lambda gap: (gap.source, -gap.num_gap, gap.label))


def _subject(row: dict[str, Any]) -> tuple[str, str, UUID | None]:
    if row["group__run_id"] is not None:
        label = row["group__run__name"] or f"run {row['group__run__number']}"
        return "training", label, row["group__run_id"]
    if number := row["group__evaluation_item__arm__checkpoint__run__number"]:
        version = row["group__evaluation_item__arm__checkpoint__version"]
        return "evaluation", f"run {number}, version {version}", None
    return "evaluation", row["group__evaluation_item__arm__policy__slug"] or "other episodes", None


def _gap(subject: tuple[str, str, UUID | None], rows: list[dict[str, Any]]) -> Gap:
    source, label, run_id = subject
    total = {name: sum(row[name] for row in rows) for name in ("decided", "undecided", "passed", "gap", "reverse")}
    passed = total["passed"]
    interval = clustered_rate([row["gap"] for row in rows], [row["passed"] for row in rows]) if passed else None
    return Gap(
        source=source,
        label=label,
        run_id=run_id,
        n=total["decided"],
        num_passed=passed,
        num_gap=total["gap"],
        num_reverse=total["reverse"],
        num_undecided=total["undecided"],
        num_clusters=sum(1 for row in rows if row["passed"]),
        rate=total["gap"] / passed if passed else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
    )
