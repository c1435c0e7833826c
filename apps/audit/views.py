"""The audit page: filter events, prove the chain, export."""

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, permitted_projects
from apps.audit.selectors import visible_events
from apps.audit.verification import verify_chain
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 50


@login_required
def audit(request: HttpRequest) -> HttpResponse:
    """Events of the projects whose trail the reader may read, newest first. `?verify=1` recomputes the hashes."""
    user = reader(request)
    projects = list(permitted_projects(user, Permission.AUDIT_READ))
    chosen = filters(request, "project", "tag", "actor")
    project = next((found for found in projects if found.slug == chosen["project"]), None)
    events = visible_events(user)
    if chosen["project"]:
        events = events.filter(project_id=project.pk) if project else events.none()
    if chosen["tag"]:
        events = events.filter(tag__icontains=chosen["tag"])
    if chosen["actor"]:
        events = events.filter(actor_name=chosen["actor"])
    paginator = Paginator(events, _PER_PAGE)
    reports = [(p, verify_chain(p)) for p in ([project] if project else projects)] if "verify" in request.GET else []
    return page(
        request, "audit.html", here="audit", page_of=paginator.get_page(request.GET.get("page")), chosen=chosen,
        query=query_of(chosen), num_events=paginator.count,
        projects=[(p.slug, p.title) for p in projects], names={p.pk: p.slug for p in projects}, reports=reports,
        exported=[project] if project else projects,
    )  # fmt: skip
