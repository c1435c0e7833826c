"""Tampering with the audit trail: the application's database role cannot, and what a superuser does is found."""

import json
import socket
from io import StringIO

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import Client

from apps.accounts.models import Project
from apps.accounts.services import issue_token
from apps.accounts.tokens import digest_of
from apps.audit import heads, jobs, messaging
from apps.audit.chain import event_hash
from apps.audit.models import AuditEvent, AuditHead
from apps.audit.services import record
from apps.audit.verification import verify_chain
from gpu_workers.contracts import queues
from ratchet.celery import app
from ratchet.store import get_store


@pytest.fixture
def events(project, engineer):
    return [record(tag="user:run:submit", by=engineer, project=project, subject=project) for _ in range(4)]


@pytest.fixture
def as_superuser():
    def run(*statements: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE audit_auditevent DISABLE TRIGGER ALL")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("ALTER TABLE audit_auditevent ENABLE TRIGGER ALL")

    return run


def rewrite_from(project, first: int) -> None:
    """What someone does who knows how the chain is made: every later hash is computed anew."""
    previous = ""
    for event in AuditEvent.objects.filter(project_id=project.pk).order_by("sequence"):
        if event.sequence >= first:
            event.previous_hash, event.reason = previous, "forged"
            event.hash = event_hash(vars(event))
            with connection.cursor() as cursor:
                cursor.execute(
                    "UPDATE audit_auditevent SET previous_hash = %s, hash = %s, reason = 'forged' WHERE id = %s",
                    [event.previous_hash, event.hash, event.pk],
                )
        previous = event.hash


@pytest.mark.parametrize(
    ("statements", "broken_at", "words"),
    [
        (["UPDATE audit_auditevent SET reason = 'x' WHERE sequence = 2"], 2, "was changed"),
        (["DELETE FROM audit_auditevent WHERE sequence = 2"], 2, "was removed"),
        (["DELETE FROM audit_auditevent WHERE sequence >= 3"], 3, "end was cut off"),
        (["DELETE FROM audit_auditevent"], 1, "end was cut off"),
        (["DELETE FROM audit_audithead"], 4, "no head"),
        (["UPDATE audit_audithead SET sequence = 3"], 4, "forged"),
        (["DELETE FROM audit_auditevent WHERE sequence = 4", "UPDATE audit_audithead SET sequence = 3"], 3, "forged"),
        (
            [
                "UPDATE audit_auditevent SET sequence = 99 WHERE sequence = 2",
                "UPDATE audit_auditevent SET sequence = 2 WHERE sequence = 3",
                "UPDATE audit_auditevent SET sequence = 3 WHERE sequence = 99",
            ],
            2,
            "was changed",
        ),
    ],
)
def test_what_a_superuser_does_is_found(project, events, as_superuser, statements, broken_at, words):
    assert verify_chain(project).ok
    as_superuser(*statements)
    report = verify_chain(project)
    assert (report.ok, report.broken_at) == (False, broken_at)
    assert words in report.message
    out = StringIO()
    with pytest.raises(SystemExit, match="1"):
        call_command("verify_audit", project.slug, stdout=out)
    assert "BROKEN demo" in out.getvalue()


def test_an_end_that_is_rewritten_with_its_hashes_is_found(project, events, as_superuser):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_auditevent DISABLE TRIGGER ALL")
        rewrite_from(project, 4)
        cursor.execute("ALTER TABLE audit_auditevent ENABLE TRIGGER ALL")
    assert "past the platform" in verify_chain(project).message


def test_a_chain_put_back_to_an_older_head_is_found_by_its_anchor(project, events, as_superuser):
    """With a genuine head kept from earlier, the database alone looks whole: what is stored elsewhere does not."""
    old = AuditHead.objects.get()
    record(tag="user:run:cancel", by=None, project=project, subject=project)
    newest = verify_chain(project)
    assert heads.anchor_all() == 1
    assert heads.anchor_all() == 0
    as_superuser("DELETE FROM audit_auditevent WHERE sequence = 5", "DELETE FROM audit_audithead")
    old.save(force_insert=True)
    report = verify_chain(project)
    assert (report.ok, report.broken_at) == (False, 5)
    get_store().fs.rm(get_store().path(f"audit/{project.pk}"), recursive=True)
    assert verify_chain(project).ok  # nothing is left that remembers event 5 …
    noted = verify_chain(project, anchor=(newest.num_events, newest.head))
    assert "cut off" in noted.message  # … but whoever noted the head


@pytest.mark.django_db(transaction=True)
def test_every_event_is_copied_when_it_is_committed_whatever_happens_to_the_database(settings, tmp_path):
    """An old signed head put back at once, before anything was copied: the message of the newest event is under way."""
    settings.OBJECT_STORE_URL = f"file://{tmp_path}"
    project = Project.objects.create(slug="lab", title="Lab")
    with app.connection_for_read() as broker:
        queue = broker.SimpleQueue(queues.CONTROL)
        queue.clear()
        record(tag="user:run:submit", by=None, project=project, subject=project)
        old = AuditHead.objects.get(project_id=project.pk)
        record(tag="user:run:cancel", by=None, project=project, subject=project)
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE audit_auditevent DISABLE TRIGGER ALL")
            cursor.execute("DELETE FROM audit_auditevent WHERE project_id = %s AND sequence = 2", [project.pk])
            cursor.execute("ALTER TABLE audit_auditevent ENABLE TRIGGER ALL")
        AuditHead.objects.filter(project_id=project.pk).delete()
        old.save(force_insert=True)
        assert verify_chain(project).ok, "the database alone looks whole"
        for _ in range(2):
            message = queue.get(timeout=20)
            assert message.headers["task"] == messaging.ANCHOR
            jobs.anchor(*message.payload[0])
            message.ack()
        queue.close()
    report = verify_chain(project)
    assert (report.ok, report.broken_at) == (False, 2)
    assert "cut off" in report.message


def test_a_message_that_the_platform_did_not_sign_makes_no_anchor(project, events):
    assert heads.anchor(project.pk, 5, "f" * 64, "guessed") is False
    assert heads.anchors_of(project.pk) == {}


def test_two_copies_of_one_event_that_differ_are_found(project, events):
    heads.anchor_all()
    assert verify_chain(project).ok
    assert heads.anchor(project.pk, 4, "f" * 64, heads.sign(project.pk, 4, "f" * 64))
    assert verify_chain(project).broken_at == 4


def test_copies_of_before_that_hold_the_hash_still_count(project, events):
    get_store().write(f"audit/{project.pk}/{4:012d}.json", json.dumps({"hash": events[3].hash}).encode())
    assert (verify_chain(project).ok, verify_chain(project).anchored) == (True, 4)


def test_a_rewritten_chain_disagrees_with_its_anchors(project, events):
    heads.anchor_all()
    record(tag="user:run:cancel", by=None, project=project, subject=project)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_auditevent DISABLE TRIGGER ALL")
        rewrite_from(project, 2)
        cursor.execute("ALTER TABLE audit_auditevent ENABLE TRIGGER ALL")
    heads.move(AuditEvent.objects.get(sequence=5))  # even with the secret key
    report = verify_chain(project)
    assert (report.ok, report.broken_at) == (False, 4)
    assert "object store" in report.message
    assert report.anchored == 0  # of what is left, nothing agrees


def test_an_unreadable_anchor_is_no_agreement(project, events):
    heads.anchor_all()
    assert verify_chain(project).anchored == 4
    get_store().write(f"audit/{project.pk}/{4:012d}.json", b"{}")
    assert verify_chain(project).ok is False


def test_a_secret_key_that_was_rotated_still_counts(project, events, settings):
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "n" * 50, [settings.SECRET_KEY]
    assert verify_chain(project).ok
    settings.SECRET_KEY_FALLBACKS = []
    assert "forged" in verify_chain(project).message


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_auditevent SET reason = 'x'",
        "DELETE FROM audit_auditevent",
        "TRUNCATE audit_auditevent",
        "ALTER TABLE audit_auditevent DISABLE TRIGGER ALL",
        "DROP TRIGGER audit_event_append_only ON audit_auditevent",
        "DROP TABLE audit_auditevent",
        "ALTER FUNCTION audit_event_refuse_change() RENAME TO no_longer",
        "SET session_replication_role = replica",
        "DELETE FROM audit_audithead",
        "SET ROLE postgres",
        "CREATE TABLE mine (a int)",
    ],
)
def test_the_applications_own_database_user_is_refused(statement):
    if settings.DATABASE_APP is None:
        pytest.skip("DATABASE_URL names one user for everything")
    project = Project.objects.create(slug="lab", title="Lab")
    event = record(tag="user:project:create", by=None, project=project, subject=project)
    with as_application() as database:
        assert database.execute("SELECT count(*) FROM audit_auditevent").fetchone() == (1,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            database.execute(statement)
    assert verify_chain(project).head == event.hash


@pytest.mark.django_db(transaction=True)
def test_the_applications_own_database_user_can_do_its_work():
    """Every table may be written by it, but those of migrations and of the trail; a chain is made and verified."""
    if settings.DATABASE_APP is None:
        pytest.skip("DATABASE_URL names one user for everything")
    tables = "FROM pg_class WHERE relkind = %s AND relnamespace = 'public'::regnamespace"
    rights = ["SELECT", "INSERT", "UPDATE", "DELETE"]
    with as_application() as database:
        held = f"SELECT relname, (SELECT bool_and(has_table_privilege(oid, p)) FROM unnest(%s::text[]) p) {tables}"
        allowed = dict(database.execute(held, [rights, "r"]).fetchall())
        sequences = database.execute(
            f"SELECT bool_and(has_sequence_privilege(oid, 'USAGE')) {tables}", ["S"]
        ).fetchone()
    assert len(allowed) > 40
    assert {name for name, all_ in allowed.items() if not all_} == {
        "audit_auditevent", "audit_audithead", "django_migrations",
    }  # fmt: skip
    assert sequences == (True,)


def as_application() -> "psycopg.Connection":
    """A session of the application's role in the test's database."""
    app, now = settings.DATABASE_APP, connection.settings_dict
    return psycopg.connect(
        host=now["HOST"], dbname=now["NAME"], user=app["USER"], password=app["PASSWORD"] or None, autocommit=True
    )


def test_an_event_says_from_where(project, owner, engineer):
    token = issue_token(user=owner, name="t", by=owner)
    client = Client(
        headers={"User-Agent": "curl/8", "Authorization": f"Bearer {token.secret}"}, REMOTE_ADDR="192.0.2.7"
    )
    answer = client.delete(f"/api/v1/projects/{project.slug}/members/{engineer.username}/")
    assert answer.status_code == 204, answer.content
    issued, *later = AuditEvent.objects.order_by("id")
    assert issued.origin == {"via": "process", "host": socket.gethostname()}
    assert [event.origin for event in later] == [
        {"via": "token", "token": digest_of(token.secret)[:12], "address": "192.0.2.7", "agent": "curl/8"}
    ]
