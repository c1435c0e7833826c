"""From an event of the audit trail to a signed request: sent once it is committed, and again until it arrives."""

import base64
import hashlib
import hmac
import json
from datetime import timedelta

import pytest
from django.utils import timezone

from apps.audit.services import record
from apps.webhooks import delivering, jobs, messaging
from apps.webhooks.delivering import BACK_OFF, deliver, due, matches, sweep
from apps.webhooks.models import Delivery, DeliveryState, Webhook
from apps.webhooks.services import change_webhook, redeliver, rotate_secret, send_test
from apps.webhooks.signing import secret_of
from ratchet.problems import Problem


def happen(project, tag: str = "user:run:submit", **fields) -> None:
    record(tag=tag, by=None, project=project, subject=project, **fields)


def later(delivery: Delivery) -> Delivery:
    Delivery.objects.filter(pk=delivery.pk).update(next_attempt_at=timezone.now())
    delivery.refresh_from_db()
    return delivery


def test_an_event_is_told_with_a_signature_that_the_standard_checks(project, webhook, receiver):
    happen(project, after={"secret": "what the run is about"}, reason="because")
    answer = deliver(Delivery.objects.get().pk)
    assert answer is not None and answer.delivered
    ((headers, body),) = receiver.got
    said = json.loads(body)
    assert (said["type"], said["source"], said["project"]) == ("run:submit", "user", "demo")
    assert said["subject"] == {"type": "accounts.project", "id": str(project.pk)}
    assert b"about" not in body and b"because" not in body, "a message names, it does not tell"
    # as in the specification of Standard Webhooks, independently of apps.webhooks.signing
    key = base64.b64decode(secret_of(webhook.pk, 1).removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert abs(int(headers["webhook-timestamp"]) - timezone.now().timestamp()) < 60
    row = Delivery.objects.get()
    assert (row.state, str(row.pk), row.num_attempts) == ("delivered", headers["webhook-id"], 1)
    assert deliver(row.pk) is None and len(receiver.got) == 1


def test_only_who_listens_is_told(project, other_project, webhook):
    happen(project, "user:suite:import")
    happen(other_project, "user:run:submit")
    assert not Delivery.objects.exists()
    change_webhook(webhook=webhook, by=None, enabled=False)
    happen(project)
    assert not Delivery.objects.exists()
    assert [matches(pattern, "gate:verdict") for pattern in ("*", "gate:*", "*:verdict", "gate:verdict", "run:*")] == [
        True, True, True, True, False,
    ]  # fmt: skip


def test_an_event_that_is_rolled_back_is_never_told(project, webhook, django_capture_on_commit_callbacks, monkeypatch):
    sent: list[object] = []
    monkeypatch.setattr(messaging, "request_delivery", sent.append)
    with django_capture_on_commit_callbacks(execute=True):
        happen(project)
    assert sent == [Delivery.objects.get().pk]


def test_what_fails_is_tried_again_with_growing_pauses_until_it_is_given_up(project, webhook, receiver):
    receiver.status, receiver.body = 503, b"not now"
    happen(project)
    row = Delivery.objects.get()
    for number, pause in enumerate(BACK_OFF, 1):
        before = timezone.now()
        assert deliver(row.pk) is not None
        row.refresh_from_db()
        assert (row.state, row.num_attempts) == (DeliveryState.PENDING, number)
        assert abs(row.next_attempt_at - before - timedelta(seconds=pause)) < timedelta(seconds=30)
        assert deliver(row.pk) is None, "not before its time"
        later(row)
    deliver(row.pk)
    row.refresh_from_db()
    assert (row.state, row.next_attempt_at, row.num_attempts) == (DeliveryState.FAILED, None, len(BACK_OFF) + 1)
    assert {(attempt.status_code, attempt.error, attempt.response) for attempt in row.attempts.all()} == {
        (503, "answered 503", "not now")
    }
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1, "the receiver can tell repetitions"
    receiver.status = 204
    again = redeliver(delivery=row, by=webhook.created_by)
    assert again.redelivery_of == row and deliver(again.pk).delivered
    assert receiver.got[-1][1] == receiver.got[0][1]


def test_the_tick_sends_what_is_due_and_a_dead_worker_gives_its_delivery_back(project, webhook, receiver, monkeypatch):
    happen(project)
    row = Delivery.objects.get()
    assert delivering._take(row.pk) is not None, "a worker took it and died"
    assert deliver(row.pk) is None and not due().exists()
    later(row)
    monkeypatch.setattr(messaging, "request_delivery", jobs.deliver)
    jobs.tick()
    row.refresh_from_db()
    assert (row.state, row.num_attempts, len(receiver.got)) == ("delivered", 2, 1)


def test_a_switched_off_webhook_keeps_what_waits(project, webhook, receiver):
    happen(project)
    change_webhook(webhook=webhook, by=None, enabled=False)
    assert not due().exists() and deliver(Delivery.objects.get().pk) is None
    change_webhook(webhook=webhook, by=None, enabled=True)
    assert deliver(due().get().pk).delivered


def test_a_test_message_is_signed_with_the_newest_secret(webhook, engineer, receiver):
    old = secret_of(webhook.pk, 1)
    new = rotate_secret(webhook=webhook, by=engineer)
    assert new != old and Webhook.objects.get().secret_version == 2
    delivery = send_test(webhook=webhook, by=engineer)
    assert deliver(delivery.pk).delivered
    headers, body = receiver.got[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right, wrong = (
        base64.b64encode(hmac.new(base64.b64decode(s.removeprefix("whsec_")), signed, hashlib.sha256).digest()).decode()
        for s in (new, old)
    )
    assert headers["webhook-signature"] == f"v1,{right}" != f"v1,{wrong}"
    with pytest.raises(Problem, match="switched off"):
        change_webhook(webhook=webhook, by=engineer, enabled=False)
        webhook.refresh_from_db()
        delivery.refresh_from_db()
        redeliver(delivery=Delivery.objects.select_related("webhook__project").get(), by=engineer)


def test_the_log_is_cut_down_to_the_newest(project, webhook, receiver, monkeypatch):
    monkeypatch.setattr(delivering, "KEPT", 2)
    for _ in range(4):
        happen(project)
    for row in Delivery.objects.order_by("id")[:3]:
        deliver(row.pk)
    assert sweep() > 0
    assert list(Delivery.objects.order_by("id").values_list("state", flat=True)) == ["delivered"] * 2 + ["pending"]


def test_an_address_that_nothing_can_be_sent_to_is_a_noted_failure_and_given_up(project, webhook):
    """One that was accepted before such were refused; it can still be switched off."""
    Webhook.objects.update(url="https://example.org/\u00e9")
    happen(project)
    row = Delivery.objects.get()
    for _ in range(len(BACK_OFF) + 1):
        answer = deliver(later(row).pk)
        assert answer is not None and not answer.delivered and answer.error
    row.refresh_from_db()
    assert (row.state, row.attempts.count()) == (DeliveryState.FAILED, len(BACK_OFF) + 1)
    assert change_webhook(webhook=webhook, by=None, enabled=False).enabled is False


def test_attempts_of_which_nothing_is_noted_come_to_an_end(project, webhook, monkeypatch):
    """The process that sends dies each time."""

    def die(*_):
        raise SystemExit

    monkeypatch.setattr(delivering, "post", die)
    happen(project)
    row = Delivery.objects.get()
    for _ in range(len(BACK_OFF) + 1):
        with pytest.raises(SystemExit):
            deliver(later(row).pk)
    assert deliver(later(row).pk) is None
    row.refresh_from_db()
    assert row.state == DeliveryState.FAILED
