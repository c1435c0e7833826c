"""Celery jobs of tasks."""

from celery import shared_task

from apps.tasks import services


@shared_task(name="apps.tasks.jobs.resend_checks", ignore_result=True)
def resend_checks() -> None:
    """Send checks again that no worker answered."""
    services.resend_checks()
