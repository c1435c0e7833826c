"""The audit page: only what one may read, and the chain's proof."""

import pytest
from django.test import Client

from apps.audit.models import AuditEvent
from apps.audit.services import record


@pytest.fixture
def trail(project, engineer, other_project, stranger):
    record(tag="user:thing:change", by=engineer, project=project, subject=project, reason="<b>because</b>")
    record(tag="user:secret:change", by=stranger, project=other_project, subject=other_project)


def get(user, path: str) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def test_events_of_other_projects_are_not_shown_and_reasons_are_escaped(trail, engineer):
    text = get(engineer, "/audit/")
    assert "user:thing:change" in text
    assert "user:secret:change" not in text
    assert "&lt;b&gt;because" in text
    assert "user:secret:change" not in get(engineer, "/audit/?project=other")
    assert "user:thing:change" not in get(engineer, "/audit/?tag=gate")


def test_times_filter_and_what_is_no_time_is_refused_by_name(trail, engineer):
    assert "user:thing:change" in get(engineer, "/audit/?since=2020-01-01&until=2999-01-01T00:00Z")
    assert "user:thing:change" not in get(engineer, "/audit/?since=2999-01-01")
    client = Client()
    client.force_login(engineer)
    for name, value in (("since", "x"), ("until", "2026-02-31"), ("since", "2026-02-31T00:00Z")):
        refused = client.get(f"/audit/?{name}={value}")
        assert refused.status_code == 400 and f"{name} must be a date or time" in refused.content.decode()


def test_who_may_not_read_the_trail_is_told_why(trail, reviewer):
    text = get(reviewer, "/audit/")
    assert "audit:read" in text
    assert "user:thing:change" not in text


def test_the_chain_is_proved_or_named_broken(trail, engineer, project):
    assert "demo: unbroken" in get(engineer, "/audit/?verify=1")
    event = AuditEvent.objects.filter(project_id=project.pk).first()
    # The table refuses changes: only a superuser of the database could make one.
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_auditevent DISABLE TRIGGER ALL")
        cursor.execute("UPDATE audit_auditevent SET reason = 'other' WHERE id = %s", [event.pk])
        cursor.execute("ALTER TABLE audit_auditevent ENABLE TRIGGER ALL")
    assert "demo: broken" in get(engineer, "/audit/?verify=1")


def test_it_says_from_where(trail, project, engineer):
    AuditEvent.objects.create(
        project_id=project.pk, sequence=10**6, at="2026-01-01T00:00:00Z", tag="user:thing:change", subject_type="x",
        subject_id="1", hash="x",
        origin={"via": "token", "token": "0123456789ab", "address": "192.0.2.7", "agent": "<a>"},
    )  # fmt: skip
    text = get(engineer, "/audit/")
    assert "192.0.2.7" in text and "0123456789ab" in text and "&lt;a&gt;" in text and "<a>" not in text
    assert "process" in text, "what no request did"
