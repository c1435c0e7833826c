"""Pages of a project's people: members, invitations, and the page that an invitation's link opens."""

from typing import Any
from uuid import UUID

from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from apps.accounts import invitations
from apps.accounts.lockout import too_many
from apps.accounts.models import Invitation, Project, Role, User
from apps.accounts.oidc import SESSION_KEY
from apps.accounts.permissions import Permission, find_project, has_permission
from apps.accounts.selectors import find_invitation, find_member, invitations_of, members_of
from apps.accounts.services import add_member, remove_member
from apps.accounts.throttles import address_of, allowed
from apps.accounts.views import sso_name
from ratchet.pages import error_page, page, reader
from ratchet.problems import Problem

_MODEL_BACKEND = "django.contrib.auth.backends.ModelBackend"
_CLOSED = "It was used, taken back, or has expired. Ask whoever invited you for a new one."
_MAX_SHOWN = 200


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def people(request: HttpRequest, slug: str) -> HttpResponse:
    """Who may do what in the project; its admins give roles and invite. A new link is shown in this answer only."""
    user = reader(request)
    project = find_project(user, slug)
    typed = {"email": "", "role": Role.VIEWER.value, "days": str(invitations.DEFAULT_DAYS)}
    link = error = ""
    if request.method == "POST":
        typed = {name: request.POST.get(name, "").strip() for name in typed}
        try:
            days = int(typed["days"]) if typed["days"].isdecimal() and len(typed["days"]) < 6 else 0
            sent = invitations.invite(project=project, email=typed["email"], role=typed["role"], by=user, days=days)
            link = request.build_absolute_uri(sent.path)
            typed["email"] = ""
        except Problem as problem:
            if problem.status != 400:
                raise
            error = " ".join(f"{e['path']}: {e['message']}." for e in problem.errors)
    response = _people(request, project, typed=typed, link=link, error=error)
    if link:
        response["Cache-Control"] = "no-store"
    return response


def _people(request: HttpRequest, project: Project, **context: Any) -> HttpResponse:
    user = reader(request)
    manages = has_permission(user, Permission.MEMBER_MANAGE, project)
    waiting = [row for row in invitations_of(user, project)[:_MAX_SHOWN] if invitations.is_open(row)] if manages else []
    return page(
        request, "people.html", project=project, members=list(members_of(user, project)[:_MAX_SHOWN]),
        manages=manages, invitations=waiting, roles=Role.choices, **context,
        hooks=has_permission(user, Permission.WEBHOOK_MANAGE, project),
    )  # fmt: skip


@login_required
@require_POST
def change_member(request: HttpRequest, slug: str, username: str) -> HttpResponse:
    """Give a member another role, or take it away (`role` empty)."""
    user = reader(request)
    member = find_member(user, find_project(user, slug, Permission.MEMBER_MANAGE), username)
    role = request.POST.get("role", "")
    if role:
        add_member(project=member.project, user=member.user, role=role, by=user)
    else:
        remove_member(membership=member, by=user)
    return redirect("people", slug=slug)


@login_required
@require_POST
def revoke_invitation(request: HttpRequest, slug: str, pk: UUID) -> HttpResponse:
    """Take an invitation back."""
    user = reader(request)
    invitations.revoke_invitation(invitation=find_invitation(user, find_project(user, slug), pk), by=user)
    return redirect("people", slug=slug)


@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("password")
def invitation(request: HttpRequest, secret: str) -> HttpResponse:
    """What the link of an invitation opens: join with the account one is signed in with, or make one."""
    if not allowed("sign_in", f"address {address_of(request)}"):
        return too_many(request)
    found = invitations.find_open(secret)
    if found is None:
        return error_page(request, 404, _CLOSED)
    request.session[SESSION_KEY] = secret  # for who signs in elsewhere and comes back
    typed = {"username": ""}
    errors: dict[str, str] = {}
    if request.method == "POST":
        typed = {"username": request.POST.get("username", "").strip()}
        try:
            return _join(request, found, typed["username"])
        except Problem as problem:
            if problem.status != 400:
                raise
            for error in problem.errors:
                errors[error["path"]] = f"{errors.get(error['path'], '')} {error['message']}".strip()
    response = page(
        request, "invitation.html", invitation=found, typed=typed, errors=errors, sso=sso_name(), path=request.path
    )
    response["Cache-Control"] = "no-store"
    return response


def _join(request: HttpRequest, found: Invitation, username: str) -> HttpResponse:
    if isinstance(request.user, User):
        invitations.accept_invitation(invitation=found, by=request.user)
    else:
        password = request.POST.get("password", "")
        user = invitations.join_as_new_person(invitation=found, username=username, password=password)
        login(request, user, backend=_MODEL_BACKEND)
    request.session.pop(SESSION_KEY, None)
    return redirect("home")
