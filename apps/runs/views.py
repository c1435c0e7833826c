"""The groups of a run, filtered; the pages of one group and one episode are with evaluations, whose arms they know."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, require
from apps.runs.models import GroupState, Outcome
from apps.runs.selectors import find_run, visible_groups
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 50


@login_required
def groups(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Groups of a run, newest first, by outcome; an open state is a filter too."""
    user = reader(request)
    run = find_run(user, pk)
    require(user, Permission.EPISODE_READ, run.project)
    chosen = filters(request, "outcome", "step")
    found = visible_groups(user).filter(run=run).order_by("-number")
    if chosen["outcome"] in Outcome.values:
        found = found.filter(outcome=chosen["outcome"])
    elif chosen["outcome"]:
        found = found.filter(state=chosen["outcome"])
    if chosen["step"].isdecimal():
        found = found.filter(batch__index=int(chosen["step"]) - 1)
    paginator = Paginator(found, _PER_PAGE)
    states = [(value, f"Open: {label.lower()}") for value, label in GroupState.choices if value != GroupState.CLOSED]
    outcomes = [choice for choice in Outcome.choices if choice[0] != Outcome.SCORED]
    return page(
        request, "groups.html", here="runs", run=run, page_of=paginator.get_page(request.GET.get("page")),
        chosen=chosen, query=query_of(chosen),
        num_groups=paginator.count, outcomes=[*outcomes, *states],
    )  # fmt: skip
