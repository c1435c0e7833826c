"""Celery jobs of metrics: a batch of points in, one service call."""

import time
from typing import Any

import msgspec
from celery import shared_task
from django.db import InterfaceError, OperationalError

from apps.metrics import exposition, maintenance
from apps.metrics.announcer import announce_now
from apps.metrics.services import STORED, store_batch
from gpu_workers.contracts import queues
from gpu_workers.contracts.points import PointBatch

_RETRY: dict[str, Any] = {
    "autoretry_for": (OperationalError, InterfaceError),
    "retry_backoff": True,
    "retry_backoff_max": 10,
    "max_retries": None,
}


@shared_task(name=queues.JOB_INGEST_POINTS, **_RETRY)
def ingest_points(payload: dict[str, Any]) -> str:
    """Store one batch of points. Returns "stored", "duplicate" or the reason of refusal."""
    started = time.perf_counter()
    try:
        batch = msgspec.convert(payload, PointBatch)
    except msgspec.ValidationError as error:
        return exposition.count_refusal(f"malformed batch: {error}")
    outcome = store_batch(batch)
    if outcome == STORED:
        announce_now(batch.run_id)
    exposition.observe_batch(batch, outcome, time.perf_counter() - started)
    return outcome


@shared_task(name="apps.metrics.jobs.seal_idle")
def seal_idle() -> int:
    """Seal runs that no new points will seal."""
    return maintenance.seal_idle()
