"""The audit page: filter events, prove the chain, export."""

from datetime import UTC, datetime

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import is_naive

from apps.accounts.permissions import Permission, permitted_projects
from apps.audit.selectors import visible_events
from apps.audit.verification import verify_chain
from ratchet.pages import filters, page, query_of, reader
from ratchet.problems import Problem

_PER_PAGE = 50


@login_required
def audit(request: HttpRequest) -> HttpResponse:
    """Events of the projects whose trail the reader may read, newest first. `?verify=1` recomputes the hashes."""
    user = reader(request)
    projects = list(permitted_projects(user, Permission.AUDIT_READ))
    chosen = filters(request, "project", "tag", "actor", "since", "until")
    project = next((found for found in projects if found.slug == chosen["project"]), None)
    events = visible_events(user)
    if chosen["project"]:
        events = events.filter(project_id=project.pk) if project else events.none()
    if chosen["tag"]:
        events = events.filter(tag__icontains=chosen["tag"])
    if chosen["actor"]:
        events = events.filter(actor_name=chosen["actor"])
    for name, lookup in (("since", "at__gte"), ("until", "at__lt")):
        if chosen[name]:
            events = events.filter(**{lookup: _moment(name, chosen[name])})
    paginator = Paginator(events, _PER_PAGE)
    reports = [(p, verify_chain(p)) for p in ([project] if project else projects)] if "verify" in request.GET else []
    return page(
        request, "audit.html", here="audit", page_of=paginator.get_page(request.GET.get("page")), chosen=chosen,
        query=query_of(chosen), num_events=paginator.count,
        projects=[(p.slug, p.title) for p in projects], names={p.pk: p.slug for p in projects}, reports=reports,
        exported=[project] if project else projects,
    )  # fmt: skip


def _moment(name: str, text: str) -> datetime:
    """A time of the address, in UTC unless it says otherwise. Raises Problem 400."""
    try:
        day = parse_date(text)
        moment = datetime(day.year, day.month, day.day) if day else parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        message = "must be a date or time such as 2026-05-01 or 2026-05-01T12:00Z"
        raise Problem("invalid", 400, f"{name} {message}.", [{"path": name, "message": message}])
    return moment.replace(tzinfo=UTC) if is_naive(moment) else moment
