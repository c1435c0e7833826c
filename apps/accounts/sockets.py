"""Websockets of programs: the API's bearer token in place of the pages' session."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from channels.db import database_sync_to_async
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from apps.accounts.authentication import KEYWORD, act_as, find_token, touch
from apps.accounts.models import User

Application = Callable[[Any, Any, Any], Awaitable[None]]


CLOSE_NOT_FOUND = 4404


class BearerOr:
    """Sockets that bring `Authorization: Bearer rt_…` go to `programs` as the token's user; all others to `pages`.

    A browser cannot send the header to another site, so its origin needs no check. A token that is not good makes
    nobody of its bearer.
    """

    def __init__(self, programs: Application, pages: Application) -> None:
        self._programs, self._pages = programs, pages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        word, _, secret = header.decode("ascii", errors="replace").partition(" ")
        if word.lower() != KEYWORD.lower():
            await self._pages(scope, receive, send)
            return
        user = await database_sync_to_async(_user_of)(secret.strip())
        await self._programs({**scope, "user": user or AnonymousUser()}, receive, send)


def _user_of(secret: str) -> User | None:
    token = find_token(secret)
    if token is None:
        return None
    touch(token)
    return act_as(token)


def live_sessions(users: Iterable[User]) -> set[str]:
    """Which of the sessions that these users' sockets came with still sign them in: one statement for all.

    A session ends by signing out, by its age and by a new password, as for a request that comes with its cookie.
    """
    owners = {user.session_key: user for user in users if user.session_key}
    if not owners:
        return set()
    rows = Session.objects.filter(session_key__in=owners, expire_date__gt=timezone.now())
    return {row.session_key for row in rows if _signs_in(row.get_decoded(), owners[row.session_key])}


def _signs_in(session: dict[str, Any], user: User) -> bool:
    same_user = session.get(SESSION_KEY) == str(user.pk)
    return same_user and constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())


async def no_such_socket(scope: Any, receive: Any, send: Any) -> None:
    """The end of every path without a websocket. A close code reaches the browser only on an accepted socket."""
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": CLOSE_NOT_FOUND})
