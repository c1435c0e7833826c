"""Health and metrics of the web process."""

import pytest
from django.test import RequestFactory

from ratchet.health import healthz, metrics


@pytest.mark.django_db
def test_healthy_when_database_and_broker_answer(settings, redis_url: str) -> None:
    settings.REDIS_URL = redis_url
    answer = healthz(RequestFactory().get("/healthz"))
    assert answer.status_code == 200
    assert b'"database": "ok", "broker": "ok"' in answer.content


@pytest.mark.django_db
def test_unhealthy_names_the_part_and_the_variable(settings) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    answer = healthz(RequestFactory().get("/healthz"))
    assert answer.status_code == 503
    assert b'"database": "ok"' in answer.content and b"REDIS_URL" in answer.content


def test_metrics_are_prometheus_text() -> None:
    answer = metrics(RequestFactory().get("/metrics"))
    assert answer["Content-Type"].startswith("text/plain")
    assert b"process_resident_memory_bytes" in answer.content
