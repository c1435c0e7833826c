"""How often one caller may ask: counted per minute in the shared cache, by token, user or address."""

import hashlib
import logging
import time
from typing import Any

import redis
from django.conf import settings
from django.core.cache import caches
from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 60


class RequestThrottle(BaseThrottle):
    """Reads and writes of the API, each with a rate of its own (`settings.RATCHET_RATES`, requests a minute)."""

    def allow_request(self, request: Request, view: Any) -> bool:
        kind = "read" if request.method in ("GET", "HEAD", "OPTIONS") else "write"
        return allowed(kind, self._who(request))

    def wait(self) -> float:
        return seconds_left()

    @staticmethod
    def _who(request: Request) -> str:
        if request.auth is not None:
            return f"token {getattr(request.auth, 'pk', '')}"
        return f"user {request.user.pk}" if request.user.is_authenticated else f"address {address_of(request)}"


def allowed(kind: str, who: str) -> bool:
    """Count one request of `kind`; False: it is one too many this minute. A cache that is down refuses nobody."""
    window = int(time.time()) // WINDOW_SECONDS
    key = f"rate:{kind}:{hashlib.sha256(who.encode()).hexdigest()[:32]}:{window}"
    cache = caches["shared"]
    try:
        cache.add(key, 0, timeout=2 * WINDOW_SECONDS)
        return int(cache.incr(key)) <= settings.RATCHET_RATES[kind]
    except (redis.RedisError, ValueError) as error:  # the limit protects the service; it must not be what takes it down
        logger.warning("requests are not counted, the shared cache does not answer: %s", error)
        return True


def seconds_left() -> float:
    """Until the next minute begins."""
    return WINDOW_SECONDS - time.time() % WINDOW_SECONDS


def address_of(request: HttpRequest | Request) -> str:
    """The caller's address; `ratchet.asgi` puts the forwarded one there for TRUSTED_PROXIES."""
    return str(request.META.get("REMOTE_ADDR", ""))
