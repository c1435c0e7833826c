"""Celery jobs of evaluations: ids in, one service call each."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import shared_task
from django.db import OperationalError, transaction

from apps.evaluations import messaging, scheduler, selection
from apps.evaluations.models import Evaluation
from apps.evaluations.signals import evaluations_ticked
from apps.evaluations.states import OPEN_STATES
from apps.runs.models import Run, RunState
from apps.runs.services import leases

logger = logging.getLogger(__name__)

_RETRY: dict[str, Any] = {"autoretry_for": (OperationalError,), "retry_backoff": True, "max_retries": 20}


@shared_task(name=messaging.ADVANCE, **_RETRY)
def advance(evaluation_id: str) -> str:
    """Advance one evaluation."""
    return scheduler.advance_evaluation(evaluation_id)


@shared_task(name=messaging.CHOOSE, **_RETRY)
def choose_checkpoint(run_id: str) -> None:
    """Choose the checkpoint of one trained run, if all is measured."""
    selection.choose_checkpoint(run_id)


@shared_task(name="apps.evaluations.jobs.tick")
def tick() -> None:
    """Do what a lost message would have done. One broken evaluation does not stop the others."""
    for evaluation_id in Evaluation.objects.filter(state__in=OPEN_STATES).order_by("id").values_list("id", flat=True):
        _guarded(partial(scheduler.advance_evaluation, evaluation_id), f"evaluation {evaluation_id}")
    for run_id in Run.objects.filter(state=RunState.TRAINED).order_by("id").values_list("id", flat=True):
        _guarded(partial(selection.choose_checkpoint, run_id), f"checkpoint of run {run_id}")
    _guarded(_release_leases, "leases of evaluations that are over")
    for _, error in evaluations_ticked.send_robust(sender=None):
        if isinstance(error, Exception):
            logger.error("a receiver of the tick failed", exc_info=error)


def _release_leases() -> None:
    """Of evaluations that were over or deleted before they could say so."""
    held = leases.open_leases().exclude(evaluation_id=None).values_list("evaluation_id", flat=True)
    for evaluation_id in filter(None, held):
        with transaction.atomic():
            if not Evaluation.objects.filter(pk=evaluation_id, state__in=OPEN_STATES).exists():
                leases.release_evaluation(evaluation_id)


def _guarded(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except Exception:
        logger.exception("%s could not be advanced; the next tick tries again", what)
