"""Celery jobs of the audit trail."""

from celery import shared_task

from apps.audit import heads


@shared_task(name="apps.audit.jobs.anchor_chains")
def anchor_chains() -> int:
    """Copy heads that moved to the object store."""
    return heads.anchor_all()
