"""The rules: of each kind of data how long it is kept, what pins it, and how it is deleted."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Length

from apps.accounts.models import IdempotencyKey
from apps.audit.models import AuditEvent
from apps.metrics.models import MetricBatch, MetricBlock
from apps.retention import objects, pins
from apps.runs.models import FINAL_RUN_STATES, Checkpoint, Group, IngestedReport, Run

Rows = QuerySet[Any]


@dataclass(frozen=True)
class Rule:
    """`old`: rows past `days` before a moment, pinned or not; `days` None: kept for ever. `size`: bytes of rows."""

    name: str
    what: str
    days: int | None
    pinned_by: str
    old: Callable[[datetime], Rows]
    pinned: Callable[[Rows], Rows]
    size: Callable[[Rows], int]
    delete: Callable[[Rows], int]

    def expired(self, now: datetime) -> Rows:
        """Rows that a sweep of this moment deletes."""
        if self.days is None:
            return self.old(now).none()
        rows = self.old(now - timedelta(days=self.days))
        return rows.exclude(pk__in=self.pinned(rows).values("pk"))

    def held(self, now: datetime) -> Rows:
        """Rows past their time that are pinned."""
        rows = self.old(now if self.days is None else now - timedelta(days=self.days))
        return self.pinned(rows)


def _over(before: datetime) -> QuerySet[Run]:
    return Run.objects.filter(state__in=FINAL_RUN_STATES, finished_at__lt=before)


def _old_checkpoints(before: datetime) -> Rows:
    return Checkpoint.objects.filter(run__in=_over(before)).exclude(uri="")


def _old_groups(before: datetime) -> Rows:
    held = Q(run__in=_over(before)) | Q(run__isnull=True, finished_at__lt=before)
    return Group.objects.filter(held, state="closed").exclude(uri="", transcript="")


def _old_blocks(before: datetime) -> Rows:
    return MetricBlock.objects.filter(series__run__in=_over(before), data__isnull=False)


def _old_replays(before: datetime) -> Rows:
    sealed = MetricBatch.objects.filter(revision__lte=F("run__metric_head__sealed_revision"), data__isnull=False)
    return sealed.filter(run__in=_over(before))


def _old_reports(before: datetime) -> Rows:
    over = _over(before).values("pk")
    return IngestedReport.objects.filter(Q(run_id__in=over) | Q(run_id__isnull=True), at__lt=before)


def _nothing(rows: Rows) -> Rows:
    return rows.none()


def _no_bytes(rows: Rows) -> int:
    return 0


def _packed_bytes(rows: Rows) -> int:
    return sum(rows.annotate(n=Length("data")).values_list("n", flat=True).iterator(chunk_size=5000))


def _forget_points(rows: Rows) -> int:
    return rows.update(data=None)


def _forget_replay(rows: Rows) -> int:
    return rows.update(data=None, index=None)


def _delete_rows(rows: Rows) -> int:
    return int(rows.delete()[0])


def _never(rows: Rows) -> int:
    raise AssertionError("what is kept for ever is not deleted")


RULES: tuple[Rule, ...] = (
    Rule(
        "checkpoints", "Files of published checkpoints, after their run ended; digest and numbers stay", 30,
        "A policy made of it, an evaluation of a gate, a run that started from it.",
        _old_checkpoints, pins.pinned_checkpoints, objects.checkpoint_bytes, objects.delete_checkpoints,
    ),
    Rule(
        "group_files", "Token arrays and transcripts of groups, after their run ended; verdicts and rewards stay", 90,
        "An evaluation of a gate (evidence of a decision), a review, a reproduction.",
        _old_groups, pins.pinned_groups, objects.group_bytes, objects.delete_group_files,
    ),
    Rule(
        "metric_points", "Every point of a series, after its run ended; each block's extremes stay", 365,
        "A policy made by the run, a gate of it.", _old_blocks, pins.pinned_blocks, _packed_bytes, _forget_points,
    ),
    Rule(
        "metric_replay", "Batches kept for pages that reconnect, after their run ended; points are in blocks", 1,
        "", _old_replays, _nothing, _packed_bytes, _forget_replay,
    ),
    Rule(
        "reports", "Ids by which reports that come twice are told, after their run ended", 30,
        "", _old_reports, _nothing, _no_bytes, _delete_rows,
    ),
    Rule(
        "idempotency_keys", "Keys and answers of requests that may be repeated", 2,
        "", lambda before: IdempotencyKey.objects.filter(created_at__lt=before), _nothing, _no_bytes, _delete_rows,
    ),
    Rule(
        "sessions", "Sessions in browsers, after they expired", 0,
        "", lambda before: Session.objects.filter(expire_date__lt=before), _nothing, _no_bytes, _delete_rows,
    ),
    Rule(
        "audit", "The audit trail", None, "Always.",
        lambda before: AuditEvent.objects.all(), lambda rows: rows, _no_bytes, _never,
    ),
)  # fmt: skip
