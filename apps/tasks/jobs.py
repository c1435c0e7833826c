"""Celery jobs of tasks."""

import logging
from collections.abc import Callable
from typing import Any

from celery import shared_task
from django.db import OperationalError

from apps.tasks import services
from apps.tasks.measurements import services as measurements
from apps.tasks.reports import messaging
from apps.tasks.reports import services as reports

logger = logging.getLogger(__name__)

_RETRY: dict[str, Any] = {"autoretry_for": (OperationalError,), "retry_backoff": True, "max_retries": 20}


@shared_task(name="apps.tasks.jobs.resend_checks", ignore_result=True)
def resend_checks() -> None:
    """Send checks again that no worker answered."""
    services.resend_checks()


@shared_task(name=messaging.COMPUTE, ignore_result=True, **_RETRY)
def compute_report(report_id: str) -> None:
    """The half of a suite's report that needs no worker."""
    _end_on_bug(reports.compute_report, report_id)


@shared_task(name=messaging.FINISH, ignore_result=True, **_RETRY)
def finish_report(report_id: str) -> None:
    """Put a report together after its last probe."""
    _end_on_bug(reports.finish_report, report_id)


@shared_task(name="apps.tasks.jobs.resend_reports", ignore_result=True)
def resend_reports() -> None:
    """Send parts of reports again that nobody answered."""
    reports.resend_reports()


@shared_task(name="apps.tasks.jobs.resend_measurements", ignore_result=True)
def resend_measurements() -> None:
    """Send parts of verifier measurements again that nobody answered."""
    measurements.resend_measurements()


def _end_on_bug(step: Callable[[str], bool], report_id: str) -> None:
    """Process edge: a report that breaks the code is ended with what broke, not tried for ever."""
    try:
        step(report_id)
    except OperationalError:
        raise  # the database was away: Celery tries again
    except Exception as error:
        logger.exception("report %s", report_id)
        reports.fail_report(report_id, f"The report could not be computed: {type(error).__name__}: {error}")
