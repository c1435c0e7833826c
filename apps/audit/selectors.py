"""Reads of the audit trail: events a person may see."""

from django.db.models import Q, QuerySet

from apps.accounts.models import Project
from apps.accounts.permissions import Actor, Permission, permitted_projects, require
from apps.audit.models import AuditEvent


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
