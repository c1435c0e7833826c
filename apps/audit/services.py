"""Writes of the audit trail: one event at a time, appended to its project's hash chain."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone

from apps.accounts.models import Project
from apps.audit import heads
from apps.audit.chain import FORMAT, canonical, event_hash
from apps.audit.models import AuditEvent
from apps.audit.origin import current_origin
from apps.audit.tags import parse_tag
from apps.audit.verification import verify_chain

__all__ = ["record", "verify_chain"]


def record(
    *,
    tag: str,
    by: AbstractBaseUser | None,
    project: Project | None,
    subject: Model,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    reason: str = "",
    evidence: Mapping[str, Any] | None = None,
) -> AuditEvent:
    """Append one event within the caller's transaction. `by` None: the platform itself.

    Writers of one project wait for each other from here to their commit, so call it last.
    """
    what = parse_tag(tag)
    project_id = project.pk if project else None
    with transaction.atomic():
        _lock_chain(project_id)
        last = AuditEvent.objects.filter(project_id=project_id).order_by("-sequence").first()
        event = AuditEvent(
            project_id=project_id,
            sequence=last.sequence + 1 if last else 1,
            at=timezone.now(),
            tag=str(what),
            actor_id=by.pk if by else None,
            actor_name=by.get_username() if by else "system",
            subject_type=subject._meta.label_lower,
            subject_id=str(subject.pk),
            before=canonical(before),
            after=canonical(after),
            reason=reason,
            evidence=canonical(evidence or {}),
            origin=canonical(current_origin()),
            format=FORMAT,
            previous_hash=last.hash if last else "",
        )
        event.hash = event_hash(vars(event))
        event.save(force_insert=True)
        heads.move(event)
    return event


def _lock_chain(project_id: UUID | None) -> None:
    key = int.from_bytes(project_id.bytes[8:], signed=True) if project_id else 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key])
