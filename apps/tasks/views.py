"""The list of suites; the pages of one suite and one task are with evaluations, which know what was measured."""

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import visible_projects
from apps.tasks.models import SuiteState
from apps.tasks.selectors import visible_suites
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 25


@login_required
def suites(request: HttpRequest) -> HttpResponse:
    """Every suite version the reader may see, newest first."""
    user = reader(request)
    chosen = filters(request, "project", "state")
    fields = {"project": "project__slug", "state": "state"}
    found = visible_suites(user).filter(**{fields[name]: value for name, value in chosen.items() if value})
    paginator = Paginator(found, _PER_PAGE)
    return page(
        request, "suites.html", here="suites", page_of=paginator.get_page(request.GET.get("page")), chosen=chosen,
        query=query_of(chosen), num_suites=paginator.count,
        projects=[(project.slug, project.title) for project in visible_projects(user)], states=SuiteState.choices,
    )  # fmt: skip
