"""Sign-in by an OpenID Connect provider (django-allauth): who is known or invited comes in, nobody else.

An account is linked by signing in with a password first and connecting, or made when an invitation is accepted. An
equal e-mail address alone links nothing: whoever could set it at the provider would take over the account.
"""

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.models import EmailAddress
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from requests import RequestException

from apps.accounts.invitations import accept_invitation, find_open, open_invitations
from apps.accounts.models import Invitation, User
from ratchet.pages import error_page

logger = logging.getLogger(__name__)

PROVIDER = "sso"
SESSION_KEY = "invitation"  # the secret of the link by which somebody came
_UNKNOWN = (
    "Your account at {name} is not known here. Sign in with your password and connect it on your account page, or ask "
    "an admin of your project for an invitation."
)
# Of requests, of an answer that is no JSON, and of a document that lacks what it must have.
_PROVIDER_ERRORS = (RequestException, ValueError, KeyError, TypeError, AttributeError)
_SILENT = (
    "{name} cannot be asked who you are. Sign in with your password, or try again; if it stays so, tell your admin."
)
_FAILED = "{name} did not confirm who you are ({error}). Try again; if it stays so, tell your admin."


class AccountAdapter(DefaultAccountAdapter):
    """No self-registration, and no messages of a look of their own."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def add_message(self, *_: Any, **__: Any) -> None:
        return None


class SsoAdapter(DefaultSocialAccountAdapter):
    """Decides who may come in with an identity that the provider has confirmed."""

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        if sociallogin.is_existing and not sociallogin.user.is_active:
            _refuse(request, 403, "This account is switched off: ask an admin.")

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        if not _invitations(request, sociallogin):
            _refuse(request, 403, _UNKNOWN.format(name=settings.OIDC_NAME))
        return True

    def is_auto_signup_allowed(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True  # the invitation has been checked; there is no form to fill

    @transaction.atomic
    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> User:
        """The new person joins every project that they are invited to."""
        found = _invitations(request, sociallogin)
        user: User = super().save_user(request, sociallogin, form)
        for invitation in found:
            accept_invitation(invitation=invitation, by=user)
        request.session.pop(SESSION_KEY, None)
        return user

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: Any) -> str:
        return reverse("account")

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        _refuse(request, 403, _FAILED.format(name=settings.OIDC_NAME, error=error or "no reason given"))


def _invitations(request: HttpRequest, sociallogin: Any) -> list[Invitation]:
    """The one of the link by which the person came, and those to addresses that the provider has verified."""
    secret = request.session.get(SESSION_KEY, "")
    linked = find_open(secret) if secret else None
    addresses: list[EmailAddress] = sociallogin.email_addresses
    verified = [address.email.lower() for address in addresses if address.verified]
    by_address = [row for row in open_invitations() if row.email.lower() in verified] if verified else []
    found = {row.pk: row for row in [*([linked] if linked else []), *by_address]}
    return list(found.values())


class ProviderErrorsMiddleware:
    """A provider that cannot be reached, or answers what is no OpenID Connect: a page that says so, never a 500."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not request.path.startswith("/accounts/oidc/") or not isinstance(error, _PROVIDER_ERRORS):
            return None
        logger.warning("sign-in by %s: %s: %s", settings.OIDC_ORIGIN, type(error).__name__, error)
        return error_page(request, 502, _SILENT.format(name=settings.OIDC_NAME))


def _refuse(request: HttpRequest, status: int, words: str) -> NoReturn:
    raise ImmediateHttpResponse(error_page(request, status, words))
