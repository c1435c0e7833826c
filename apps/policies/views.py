"""Pages of policies and channels; the page of one policy is with evaluations, which know how good it was measured."""

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, has_permission, visible_projects
from apps.policies.models import PolicyKind
from apps.policies.selectors import (
    channel_history,
    channel_status,
    find_channel,
    visible_channels,
    visible_policies,
)
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 25


@login_required
def policies(request: HttpRequest) -> HttpResponse:
    """Channels first, then every policy the reader may see, newest first."""
    user = reader(request)
    chosen = filters(request, "project", "kind")
    fields = {"project": "project__slug", "kind": "kind"}
    found = visible_policies(user).filter(**{fields[name]: value for name, value in chosen.items() if value})
    paginator = Paginator(found.prefetch_related("channels"), _PER_PAGE)
    channels = visible_channels(user).order_by("project__slug", "name")
    return page(
        request, "policies.html", here="policies", page_of=paginator.get_page(request.GET.get("page")),
        chosen=chosen, query=query_of(chosen),
        num_policies=paginator.count, statuses=[channel_status(channel) for channel in channels],
        projects=[(project.slug, project.title) for project in visible_projects(user)], kinds=PolicyKind.choices,
    )  # fmt: skip


@login_required
def channel(request: HttpRequest, project: str, name: str) -> HttpResponse:
    """What a channel serves, every move of it, and the way back."""
    user = reader(request)
    found = find_channel(user, project, name)
    return page(
        request, "channel.html", here="policies", channel=found, status=channel_status(found),
        moves=list(channel_history(user, found)),
        may_roll_back=has_permission(user, Permission.CHANNEL_ROLLBACK, found.project),
    )  # fmt: skip
