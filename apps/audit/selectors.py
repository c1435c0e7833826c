"""Reads of the audit trail: events a person may see, and the proof that a chain is whole."""

from dataclasses import dataclass

from django.db.models import Q, QuerySet

from apps.accounts.models import Project
from apps.accounts.permissions import Actor, Permission, permitted_projects, require
from apps.audit.chain import event_hash
from apps.audit.models import AuditEvent


@dataclass(frozen=True)
class ChainReport:
    """Whether a project's chain is whole. `head` is the newest hash: note it elsewhere to notice a cut-off tail."""

    ok: bool
    num_events: int
    head: str = ""
    broken_at: int | None = None  # sequence of the first event that does not fit
    message: str = ""


def visible_events(by: Actor, project: Project | None = None) -> QuerySet[AuditEvent]:
    """Events of the projects whose audit trail the user may read, newest first."""
    events = AuditEvent.objects.order_by("-id")
    if project is not None:
        require(by, Permission.AUDIT_READ, project)
        return events.filter(project_id=project.pk)
    readable = Q(project_id__in=permitted_projects(by, Permission.AUDIT_READ).values("pk"))
    if by is None or (by.is_superuser and not by.token_project_id):
        readable |= Q(project_id__isnull=True)
    return events.filter(readable)


def events_of(by: Actor, project: Project, subject_type: str, subject_id: str) -> QuerySet[AuditEvent]:
    """What happened to one object, newest first."""
    return visible_events(by, project).filter(subject_type=subject_type, subject_id=str(subject_id))


def verify_chain(project: Project | None) -> ChainReport:
    """Recompute every hash of a project's chain (None: events that belong to no project). Callers check the right."""
    previous, count = "", 0
    events = AuditEvent.objects.filter(project_id=project.pk if project else None).order_by("sequence")
    for event in events.iterator(chunk_size=500):
        if event.sequence != count + 1:
            message = f"Event {count + 1} is missing: it was removed."
            return ChainReport(False, count, previous, count + 1, message)
        if event.previous_hash != previous or event.hash != event_hash(vars(event)):
            message = f"Event {event.sequence} ({event.tag}) does not match its hash: it was changed."
            return ChainReport(False, count, previous, event.sequence, message)
        previous, count = event.hash, count + 1
    return ChainReport(True, count, previous, None, f"{count} events, unbroken." if count else "No events yet.")
