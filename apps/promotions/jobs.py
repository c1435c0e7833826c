"""Celery jobs of promotions: ids in, one service call each."""

from celery import shared_task
from django.db import OperationalError

from apps.promotions import messaging
from apps.promotions.models import Gate
from apps.promotions.regression import conclude_regression
from apps.promotions.services import compute_gate


@shared_task(name=messaging.COMPUTE, autoretry_for=(OperationalError,), retry_backoff=True, max_retries=20)
def compute(gate_id: str) -> str:
    """Give a gate its verdict, or conclude its regression replay, whichever is due."""
    gate = compute_gate(Gate.objects.get(pk=gate_id))
    if gate.regression_id is not None:
        gate = conclude_regression(gate)
    return str(gate.state)
