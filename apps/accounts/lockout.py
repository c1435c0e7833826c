"""What happens when somebody guesses passwords: the answer while locked out, and the audit of lockouts and sign-ins."""

import math
from typing import Any

from axes.signals import user_locked_out
from django.conf import settings
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse

from apps.accounts.models import User
from apps.accounts.throttles import seconds_left
from apps.audit.services import record
from ratchet.pages import error_page

_WORDS = "Too many wrong passwords: wait {minutes} minutes, then try again. An admin can tell you your user name."
TOO_MANY = "Too many attempts within a minute: wait a moment, then try again."


def locked_out(request: HttpRequest, *_: Any, **__: Any) -> HttpResponse:
    """The page while a user name is locked from an address. It says the same whether the name exists or not."""
    minutes = int(settings.AXES_COOLOFF_TIME.total_seconds() // 60)
    response = error_page(request, 429, _WORDS.format(minutes=minutes))
    response["Retry-After"] = str(minutes * 60)
    return response


def too_many(request: HttpRequest) -> HttpResponse:
    """The page for who has asked too often within a minute."""
    response = error_page(request, 429, TOO_MANY)
    response["Retry-After"] = str(math.ceil(seconds_left()))
    return response


@receiver(user_locked_out)
def _note_lockout(sender: Any, username: str = "", **_: Any) -> None:
    user = User.objects.filter(username=username).first()
    if user is not None:
        record(tag="system:session:lock", by=None, project=None, subject=user, after={"username": username})


@receiver(user_logged_in)
def _note_sign_in(sender: Any, user: User, **_: Any) -> None:
    record(tag="user:session:sign_in", by=user, project=None, subject=user)
