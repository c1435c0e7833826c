"""Bearer tokens of the REST API: hashed look-up, expiry, revocation, scopes, time of last use."""

from datetime import timedelta

from django.db.models import Q, QuerySet
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.accounts.models import ApiToken, User
from apps.accounts.tokens import digest_of

KEYWORD = "Bearer"
_LAST_USED_RESOLUTION = timedelta(minutes=1)  # not a write per request


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer rt_…`. Without the header the next class (session) is asked."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != KEYWORD.lower().encode():
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The Authorization header must read: Bearer <token>.")
        secret = words[1].decode("ascii", errors="replace")
        token = find_token(secret)
        if token is None:
            raise AuthenticationFailed(
                "The token is unknown, expired or revoked: issue a new one under /api/v1/tokens/."
            )
        touch(token)
        return act_as(token), token

    def authenticate_header(self, request: Request) -> str:
        return KEYWORD


def find_token(secret: str) -> ApiToken | None:
    """The live token of an active user with this secret."""
    return live_tokens().select_related("user", "project").filter(digest=digest_of(secret)).first()


def live_tokens() -> QuerySet[ApiToken]:
    """Tokens that open something now."""
    unexpired = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    return ApiToken.objects.filter(unexpired, revoked_at__isnull=True, user__is_active=True)


def act_as(token: ApiToken) -> User:
    """The token's user, narrowed to its scopes and project."""
    user = token.user
    user.token_id = token.pk
    user.token_scopes = frozenset(token.scopes)
    user.token_project_id = token.project_id
    user.token_expires_at = token.expires_at
    return user


def touch(token: ApiToken) -> None:
    """Note the time of use, at most once a minute."""
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at >= _LAST_USED_RESOLUTION:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
