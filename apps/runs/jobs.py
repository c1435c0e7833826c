"""Celery jobs of runs: ids or messages in, one service call each."""

import logging
from datetime import datetime
from typing import Any

import msgspec
from celery import shared_task
from django.core.exceptions import ValidationError
from django.db import OperationalError, transaction
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from apps.runs import messaging, reconciler
from apps.runs.models import AttemptState, Run, RunAttempt
from apps.runs.services import attempts, datasets, leases, reports
from apps.runs.services.controls import lock_run
from gpu_workers.contracts import queues
from gpu_workers.contracts.messages import Heartbeat
from ratchet.commits import after_commit

logger = logging.getLogger(__name__)

_RETRY: dict[str, Any] = {"autoretry_for": (OperationalError,), "retry_backoff": True, "max_retries": 20}


@shared_task(name=queues.JOB_INGEST, **_RETRY)
def ingest_report(payload: dict[str, Any]) -> str:
    """Store one report of a worker."""
    return reports.ingest_report(payload)


@shared_task(name=queues.JOB_HEARTBEAT)
def heartbeat(payload: dict[str, Any]) -> bool:
    """Extend a trainer's lease. A wrong token extends nothing."""
    try:
        beat = msgspec.convert(payload, Heartbeat)
        accepted, first = attempts.apply_heartbeat(beat, timezone.now())
    except (msgspec.ValidationError, ValidationError) as error:
        logger.warning("heartbeat dropped: %s", error)
        return False
    if first:
        messaging.request_advance(beat.run_id)
    return accepted


@shared_task(name=messaging.ADVANCE, **_RETRY)
def advance(run_id: str) -> str:
    """Advance one run."""
    return reconciler.advance_run(run_id)


@shared_task(name=messaging.BUILD_DATASET, **_RETRY)
def build_dataset(run_id: str) -> str:
    """Write the supervised examples of a run."""
    return datasets.build_dataset(Run.objects.select_related("suite", "project").get(pk=run_id))


@shared_task(name="apps.runs.jobs.tick")
def tick() -> int:
    """Advance every unfinished run, whatever message was lost. One broken run does not stop the others."""
    now = timezone.now()
    count = 0
    for run_id in Run.objects.filter(state__in=reconciler.ACTIVE_STATES).order_by("id").values_list("id", flat=True):
        try:
            reconciler.advance_run(run_id)
            count += 1
        except Exception:
            logger.exception("run %s could not be advanced; the next tick tries again", run_id)
    reconciler.advance_evaluation_groups(now)
    leases.sweep(now)
    return count


@shared_task(name="apps.runs.jobs.reap_leases")
def reap_leases() -> int:
    """End attempts whose lease expired and have their runs advanced."""
    now = timezone.now()
    _look_for_lost_jobs(now)
    late = RunAttempt.objects.exclude(state=AttemptState.ENDED).filter(lease_expires_at__lt=now)
    count = 0
    for attempt in late.select_related("run"):
        with transaction.atomic():
            run = lock_run(attempt.run)
            fresh = RunAttempt.objects.select_for_update(no_key=True).get(pk=attempt.pk)
            if fresh.state == AttemptState.ENDED or fresh.lease_expires_at >= now:
                continue
            if run.state in reconciler.ACTIVE_STATES:
                attempts.lose_attempt(run, fresh, attempts.expiry_reason(fresh))
            else:
                attempts.end_attempt(fresh, "the run was over", stop=True)
            after_commit(messaging.request_advance, run.id)
            count += 1
    return count


def _look_for_lost_jobs(now: datetime) -> None:
    if not RunAttempt.objects.filter(state=AttemptState.SENT).exists():
        return
    try:
        num_waiting = messaging.count_waiting_trainings()
    except BrokerError as error:
        logger.warning("the train queue could not be counted: %s", error)
        return
    if num_waiting is not None:
        attempts.shorten_taken(num_waiting, now)
