"""Celery jobs of retention."""

from celery import shared_task
from django.conf import settings

from apps.retention.services import sweep_daily


@shared_task(name="apps.retention.jobs.sweep")
def sweep() -> int:
    """Plan today's sweep; with RETENTION_DELETE apply yesterday's first. Returns the plan's id."""
    return sweep_daily(delete=settings.RETENTION_DELETE).pk
