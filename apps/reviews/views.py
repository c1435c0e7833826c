"""The blind review page: one item, its questions, nothing that gives the verdict or the policy away."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, permitted_projects
from apps.reviews.selectors import summary
from apps.reviews.services import next_item, show_item
from ratchet.pages import page, reader


@login_required
def review(request: HttpRequest) -> HttpResponse:
    """The next item, reserved for ten minutes; who may not label sees progress and rates only."""
    user = reader(request)
    projects = list(permitted_projects(user, Permission.REVIEW_LABEL))
    chosen = request.GET.get("project", "")
    chosen = chosen if any(project.slug == chosen for project in projects) else ""
    item = next_item(by=user, project_slug=chosen) if projects else None
    return page(
        request, "review.html" if item else "review_summary.html", here="review", projects=projects, chosen=chosen,
        project_options=[(project.slug, project.title) for project in projects],
        item=show_item(item=item, by=user) if item else None, summary=summary(user, chosen), may_label=bool(projects),
    )  # fmt: skip


@login_required
def rates(request: HttpRequest) -> HttpResponse:
    """How far labelling is, and how wrong the verifier is."""
    user = reader(request)
    projects = list(permitted_projects(user, Permission.REVIEW_LABEL))
    return page(
        request, "review_summary.html", here="review", projects=projects, chosen="", item=None, summary=summary(user),
        may_label=bool(projects),
    )  # fmt: skip
