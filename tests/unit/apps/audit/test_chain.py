"""The audit trail: append-only, chained, and tampering shows."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import InternalError, connection, transaction
from django.db.utils import IntegrityError

from apps.audit import heads
from apps.audit.chain import FORMAT, HASHED_FIELDS, canonical, event_hash
from apps.audit.models import AuditEvent
from apps.audit.services import record
from apps.audit.verification import verify_chain

_TRIGGER = "audit_event_append_only"


@pytest.fixture
def events(project, engineer):
    values = {"rate": 1e22, "small": 1e-7, "whole": 3.0, "none": None, "list": [1, "ü"], 5: "key", "nan": float("nan")}
    return [
        record(tag="user:run:submit", by=engineer, project=project, subject=project, after={**values, "n": n})
        for n in range(3)
    ]


def tamper(sql: str, parameters: list) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE audit_auditevent DISABLE TRIGGER {_TRIGGER}")
        cursor.execute(sql, parameters)
        cursor.execute(f"ALTER TABLE audit_auditevent ENABLE TRIGGER {_TRIGGER}")


def test_events_follow_each_other_and_verify_after_a_round_trip(project, events):
    report = verify_chain(project)
    assert (report.ok, report.num_events, report.head) == (True, 3, events[-1].hash)
    assert [event.sequence for event in events] == [1, 2, 3]
    assert events[1].previous_hash == events[0].hash
    assert verify_chain(None).num_events == 0


def test_projects_have_chains_of_their_own(project, other_project, events):
    event = record(tag="system:suite:check", by=None, project=other_project, subject=other_project)
    assert (event.sequence, event.previous_hash, event.actor_name) == (1, "", "system")
    assert verify_chain(other_project).ok


@pytest.mark.parametrize("statement", ["UPDATE audit_auditevent SET reason = 'x'", "DELETE FROM audit_auditevent"])
def test_the_database_refuses_changes(events, statement):
    refused = pytest.raises((IntegrityError, InternalError), match="append-only")
    with refused, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert AuditEvent.objects.count() == 3


@pytest.mark.parametrize(
    ("column", "value"),
    [("reason", "other"), ("actor_name", "mallory"), ("after", '{"n": 9}'), ("at", "2020-01-01"), ("tag", "user:a:b")],
)
def test_a_changed_event_is_found(project, events, column, value):
    tamper(f"UPDATE audit_auditevent SET {column} = %s WHERE id = %s", [value, events[1].pk])
    report = verify_chain(project)
    assert (report.ok, report.broken_at) == (False, 2)


def test_a_removed_event_is_found(project, events):
    tamper("DELETE FROM audit_auditevent WHERE id = %s", [events[1].pk])
    report = verify_chain(project)
    assert (report.ok, report.broken_at) == (False, 2)
    assert "missing" in report.message


def test_a_rewritten_event_breaks_its_successor(project, events):
    events[1].reason = "forged"
    tamper(
        "UPDATE audit_auditevent SET reason = %s, hash = %s WHERE id = %s",
        ["forged", event_hash(vars(events[1])), events[1].pk],
    )
    assert verify_chain(project).broken_at == 3


@pytest.mark.parametrize("format", HASHED_FIELDS)
def test_the_hash_covers_every_field_of_its_format(format):
    names = HASHED_FIELDS[format]
    fields = {**dict.fromkeys(names), "format": format}
    hashes = {event_hash(fields)} | {event_hash({**fields, name: "x"}) for name in names if name != "format"}
    assert len(hashes) == len(set(names) - {"format"}) + 1
    stored = {field.name for field in AuditEvent._meta.concrete_fields} - {"id", "hash"}
    assert set(HASHED_FIELDS[FORMAT]) == stored


def test_events_of_the_first_format_still_verify(project, events):
    """As an older version wrote them: without origin, and without a format in the hash."""
    previous = ""
    for event in events:
        event.previous_hash, event.format, event.origin = previous, 1, {}
        event.hash = previous = event_hash(vars(event))
        columns = "previous_hash = %s, hash = %s, format = 1, origin = '{}'"
        tamper(f"UPDATE audit_auditevent SET {columns} WHERE id = %s", [event.previous_hash, event.hash, event.pk])
    heads.move(events[-1])
    assert verify_chain(project).ok
    assert record(tag="user:run:submit", by=None, project=project, subject=project).format == FORMAT
    assert verify_chain(project).ok
    tamper("UPDATE audit_auditevent SET format = 1, origin = '{}' WHERE sequence = 4", [])
    assert verify_chain(project).broken_at == 4


def test_canonical_values_survive_json():
    value = {
        "f": 2.0,
        "t": (1, 2),
        "u": UUID(int=1),
        "d": datetime(2026, 1, 2, tzinfo=UTC),
        "inf": float("inf"),
        "b": True,
    }
    assert canonical(value) == {
        "f": 2, "t": [1, 2], "u": str(UUID(int=1)), "d": "2026-01-02T00:00:00.000000+00:00", "inf": "inf", "b": True,
    }  # fmt: skip


def test_a_tag_has_three_parts_and_a_known_source(project):
    for tag in ("run:submit", "robot:run:submit", "user:run:Submit"):
        with pytest.raises(ValueError, match="source:subject:action"):
            record(tag=tag, by=None, project=project, subject=project)


def test_an_event_goes_with_its_transaction(project, events):
    with pytest.raises(RuntimeError), transaction.atomic():
        record(tag="user:run:cancel", by=None, project=project, subject=project)
        raise RuntimeError("undone")
    assert verify_chain(project).num_events == 3
