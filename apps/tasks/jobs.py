"""Celery jobs of tasks."""

from typing import Any

from celery import shared_task
from django.db import OperationalError

from apps.tasks import services
from apps.tasks.reports import messaging
from apps.tasks.reports import services as reports

_RETRY: dict[str, Any] = {"autoretry_for": (OperationalError,), "retry_backoff": True, "max_retries": 20}


@shared_task(name="apps.tasks.jobs.resend_checks", ignore_result=True)
def resend_checks() -> None:
    """Send checks again that no worker answered."""
    services.resend_checks()


@shared_task(name=messaging.COMPUTE, ignore_result=True, **_RETRY)
def compute_report(report_id: str) -> None:
    """The half of a suite's report that needs no worker."""
    reports.compute_report(report_id)


@shared_task(name=messaging.FINISH, ignore_result=True, **_RETRY)
def finish_report(report_id: str) -> None:
    """Put a report together after its last probe."""
    reports.finish_report(report_id)


@shared_task(name="apps.tasks.jobs.resend_reports", ignore_result=True)
def resend_reports() -> None:
    """Send parts of reports again that nobody answered."""
    reports.resend_reports()
