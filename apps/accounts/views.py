"""Pages of a person: sign in and out, password, roles, tokens."""

from typing import Any
from uuid import UUID

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse_lazy
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from apps.accounts.lockout import TOO_MANY, too_many
from apps.accounts.models import Membership
from apps.accounts.permissions import permissions_of
from apps.accounts.selectors import tokens_of
from apps.accounts.services import DEFAULT_TOKEN_DAYS, issue_token, revoke_token
from apps.accounts.throttles import address_of, allowed
from apps.audit.services import record
from ratchet.pages import page, reader
from ratchet.problems import Problem


class SignIn(LoginView):
    """Django's own, in the look of the pages, and never more than so many attempts a minute from one address."""

    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not allowed("sign_in", f"address {address_of(request)}"):
            return too_many(request)
        return super().post(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {"here": "", "charts": False, "next": "", "sso": sso_name(), **super().get_context_data(**kwargs)}


class ChangePassword(PasswordChangeView):
    """A new password; every other session of the person ends with the old one."""

    template_name = "password.html"
    success_url = reverse_lazy("account")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {"here": "", "charts": False, **super().get_context_data(**kwargs)}

    def form_valid(self, form: Any) -> HttpResponse:
        response = super().form_valid(form)
        user = reader(self.request)
        record(tag="user:account:change_password", by=user, project=None, subject=user)
        return response


def sso_name() -> str:
    """What the sign-in provider is called; empty: there is none."""
    return settings.OIDC_NAME if settings.OIDC_ORIGIN else ""


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters()
def account(request: HttpRequest) -> HttpResponse:
    """Roles and tokens. A new token's secret is in the answer to its own request and nowhere else."""
    user = reader(request)
    typed = {"name": "", "scopes": "", "days": str(DEFAULT_TOKEN_DAYS)}
    secret = error = ""
    if request.method == "POST":
        typed = {name: request.POST.get(name, "").strip() for name in typed}
        try:
            secret = _issue(request, typed)
            typed = {"name": "", "scopes": "", "days": str(DEFAULT_TOKEN_DAYS)}
        except Problem as problem:
            error = " ".join([problem.detail, *(f"{e['path']}: {e['message']}." for e in problem.errors)])
    memberships = Membership.objects.filter(user=user).select_related("project").order_by("project__slug")
    roles = [
        {"project": m.project, "role": m.get_role_display(), "rights": permissions_of(user, m.project)}
        for m in memberships
    ]
    response = page(
        request, "account.html", roles=roles, tokens=list(tokens_of(user)), secret=secret, error=error, typed=typed,
        now=timezone.now(), sso=sso_name(), has_password=user.has_usable_password(),
        linked=bool(sso_name()) and SocialAccount.objects.filter(user=user).exists(),
    )  # fmt: skip
    if secret:
        response["Cache-Control"] = "no-store"
    return response


def _issue(request: HttpRequest, typed: dict[str, str]) -> str:
    user = reader(request)
    if not allowed("token", f"user {user.pk}"):
        raise Problem("throttled", 429, TOO_MANY)
    if not typed["name"]:
        raise Problem("invalid", 400, "Give the token a name.")
    if len(typed["name"]) > 100:
        raise Problem("invalid", 400, "The token's name has more than 100 characters.")
    if not (typed["days"].isdecimal() and len(typed["days"]) < 6):
        raise Problem("invalid", 400, "Days until it expires must be a whole number.")
    issued = issue_token(
        user=user, name=typed["name"], by=user, scopes=typed["scopes"].split(), days=int(typed["days"])
    )
    return issued.secret


@login_required
@require_POST
def revoke(request: HttpRequest, pk: UUID) -> HttpResponse:
    """End one of one's own tokens."""
    user = reader(request)
    revoke_token(token=get_object_or_404(tokens_of(user), pk=pk), by=user)
    return redirect("account")
