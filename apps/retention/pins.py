"""What pins data beyond its time: accepted checkpoints, evidence of decisions, what people have looked at."""

from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.evaluations.models import Evaluation, EvaluationArm, EvaluationItem
from apps.policies.models import Policy
from apps.promotions.models import Gate
from apps.reviews.models import ReviewItem
from apps.runs.models import Reproduction, RunAttempt

Rows = QuerySet[Any]


def pinned_checkpoints(rows: Rows) -> Rows:
    """Of checkpoints."""
    policies = Policy.objects.filter(
        Q(adapter=OuterRef("adapter")) | Q(run_id=OuterRef("run_id"), run_version=OuterRef("version"))
    )
    in_gates = EvaluationArm.objects.filter(checkpoint=OuterRef("pk"), evaluation__in=_evidence())
    started_from = RunAttempt.objects.filter(resume_from=OuterRef("uri")).exclude(run=OuterRef("run"))
    return rows.filter(Exists(policies) | Exists(in_gates) | Exists(started_from))


def pinned_groups(rows: Rows) -> Rows:
    """Of groups."""
    evidence = EvaluationItem.objects.filter(group=OuterRef("pk"), evaluation__in=_evidence())
    reviewed = ReviewItem.objects.filter(episode__group=OuterRef("pk"))
    reproduced = Reproduction.objects.filter(episode__group=OuterRef("pk"))
    return rows.filter(Exists(evidence) | Exists(reviewed) | Exists(reproduced))


def pinned_blocks(rows: Rows) -> Rows:
    """Of blocks of metric points: those of runs that led to a policy or were judged by a gate."""
    policies = Policy.objects.filter(run_id=OuterRef("series__run_id"))
    gates = Gate.objects.filter(run=OuterRef("series__run_id"))
    return rows.filter(Exists(policies) | Exists(gates) | Q(series__run__result__isnull=False))


def _evidence() -> QuerySet[Evaluation]:
    """Evaluations that gates and their regression replays rest on."""
    decided = Gate.objects.values("evaluation_id")
    replayed = Gate.objects.exclude(regression=None).values("regression_id")
    return Evaluation.objects.filter(Q(pk__in=decided) | Q(pk__in=replayed))
