"""From where an event comes: the address and the credential of the request, or the process that acts by itself."""

import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from apps.accounts.tokens import digest_of

_MAX_AGENT = 200
_request: ContextVar[HttpRequest | None] = ContextVar("audit_request", default=None)


class OriginMiddleware:
    """Remembers the request while it is answered. Behind one of TRUSTED_PROXIES `ratchet.asgi` sets the address."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self.is_async:
            return self._answer(request)
        token = _request.set(request)
        try:
            response: HttpResponse = self.get_response(request)
            return response
        finally:
            _request.reset(token)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        token = _request.set(request)
        try:
            response: HttpResponse = await self.get_response(request)
            return response
        finally:
            _request.reset(token)


def current_origin() -> dict[str, str]:
    """`via` session, token (with the start of its digest) or process (with its host), and the caller's address."""
    request = _request.get()
    if request is None:
        return {"via": "process", "host": socket.gethostname()}
    origin = {"address": request.META.get("REMOTE_ADDR", ""), "agent": request.headers.get("User-Agent", "")}
    origin["agent"] = origin["agent"][:_MAX_AGENT]
    kind, _, secret = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret:
        return origin | {"via": "token", "token": digest_of(secret.strip())[:12]}
    return origin | {"via": "session"}
