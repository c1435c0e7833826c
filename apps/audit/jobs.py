"""Celery jobs of the audit trail."""

from uuid import UUID

from celery import shared_task

from apps.audit import heads, messaging


@shared_task(name=messaging.ANCHOR)
def anchor(project_id: str | None, sequence: int, digest: str, signature: str) -> None:
    """Copy the head that an event was committed with to the object store."""
    heads.anchor(UUID(project_id) if project_id else None, sequence, digest, signature)


@shared_task(name="apps.audit.jobs.anchor_chains")
def anchor_chains() -> int:
    """Copy the heads to the object store whose messages were lost."""
    return heads.anchor_all()
