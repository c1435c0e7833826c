"""Liveness of the web process and what it depends on; Prometheus metrics."""

import prometheus_client
import redis
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 when database and broker answer, else 503 naming the part that does not."""
    parts = {"database": _database(), "broker": _broker()}
    healthy = all(state == "ok" for state in parts.values())
    return JsonResponse({"status": "ok" if healthy else "unavailable", "parts": parts}, status=200 if healthy else 503)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus text of this process."""
    return HttpResponse(prometheus_client.generate_latest(), content_type=prometheus_client.CONTENT_TYPE_LATEST)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return "does not answer: check DATABASE_URL and that PostgreSQL runs"
    return "ok"


def _broker() -> str:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2) as client:
            client.ping()
    except redis.RedisError:
        return "does not answer: check REDIS_URL and that Valkey runs"
    return "ok"
