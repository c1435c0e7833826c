"""Webhooks over REST and their pages: who may, what is refused, and the secret that is shown once."""

import pytest
from django.test import Client

from apps.audit.models import AuditEvent
from apps.webhooks.delivering import deliver
from apps.webhooks.models import Delivery, Webhook
from apps.webhooks.services import MAX_PER_PROJECT

BODY = {"project": "demo", "url": "https://example.org/hook", "events": ["run:*"]}
URL = "/api/v1/webhooks/"


def test_the_life_of_a_webhook(engineer, viewer, stranger, client_of):
    assert client_of(viewer).post(URL, BODY).status_code == 403
    assert client_of(stranger).post(URL, BODY).status_code == 404
    client = client_of(engineer)
    made = client.post(URL, BODY)
    assert made.status_code == 201 and made.json()["secret"].startswith("whsec_")
    assert client.post(URL, BODY).json()["code"] == "webhook_exists"
    url = made["Location"]
    shown = client.get(url)
    assert "secret" not in shown.json()
    changed = client.patch(url, {"events": ["gate:verdict"], "enabled": False}, headers={"If-Match": shown["ETag"]})
    assert (changed.json()["events"], changed.json()["enabled"]) == (["gate:verdict"], False)
    assert client.patch(url, {"enabled": True}, headers={"If-Match": shown["ETag"]}).status_code == 412
    rotated = client.post(f"{url}rotate/").json()["secret"]
    assert rotated != made.json()["secret"]
    assert client_of(viewer).get(url).status_code == client_of(stranger).get(url).status_code == 404
    assert client.delete(url).status_code == 204 and client.get(url).status_code == 404
    tags = set(AuditEvent.objects.filter(tag__contains=":webhook:").values_list("tag", flat=True))
    assert tags == {f"user:webhook:{verb}" for verb in ("create", "change", "rotate", "delete")}


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"url": "http://10.0.0.1/"}, ["url"]),
        ({"url": "https://127.0.0.1/", "events": ["run"]}, ["events", "url"]),
        ({"events": []}, ["events"]),
        ({"colour": "red"}, ["colour"]),
    ],
)
def test_every_wrong_field_is_named(engineer, client_of, changes, paths):
    refused = client_of(engineer).post(URL, {**BODY, **changes})
    assert refused.status_code == 400
    assert sorted(error["path"] for error in refused.json()["errors"]) == paths


def test_a_project_has_a_bounded_number(engineer, client_of):
    client = client_of(engineer)
    for number in range(MAX_PER_PROJECT):
        assert client.post(URL, {**BODY, "url": f"https://example.org/{number}"}).status_code == 201
    assert client.post(URL, BODY).json()["code"] == "too_many_webhooks"


def test_a_test_and_its_redelivery_are_in_the_log(webhook, engineer, receiver, client_of):
    client = client_of(engineer)
    started = client.post(f"{URL}{webhook.pk}/test/")
    assert (started.status_code, started.json()["state"]) == (202, "pending")
    assert client.post(f"{started['Location']}redeliver/").json()["code"] == "delivery_pending"
    deliver(started.json()["id"])
    payload = Delivery.objects.get(pk=started.json()["id"]).payload  # as any other, but no event of the audit trail
    assert (payload["type"], payload["source"], payload["audit_sequence"]) == ("webhook:test", "user", None)
    done = client.get(started["Location"]).json()
    assert (done["state"], done["attempts"][0]["status_code"], done["attempts"][0]["response"]) == (
        "delivered",
        200,
        "thanks",
    )
    again = client.post(f"{started['Location']}redeliver/")
    assert (again.status_code, again.json()["redelivery_of"]) == (202, started.json()["id"])
    log = client.get(f"{URL}{webhook.pk}/deliveries/?state=pending").json()["results"]
    assert [row["id"] for row in log] == [again.json()["id"]]


def test_the_pages(project, engineer, viewer, receiver, settings):
    settings.WEBHOOK_NETWORKS = ["127.0.0.0/8"]
    client, other = Client(), Client()
    client.force_login(engineer)
    other.force_login(viewer)
    assert other.get("/projects/demo/webhooks/").status_code == 403
    wrong = client.post("/projects/demo/webhooks/", {"url": "gopher://x", "events": "run"}).content.decode()
    assert "url: must be an https:// address." in wrong and 'value="gopher://x"' in wrong
    made = client.post("/projects/demo/webhooks/", {"url": receiver.url, "events": "run:* gate:*"})
    assert "whsec_" in made.content.decode() and made["Cache-Control"] == "no-store"
    hook = Webhook.objects.get()
    url = f"/webhooks/{hook.pk}/"
    assert "whsec_" not in client.get(url).content.decode() and other.get(url).status_code == 404
    assert client.get("/projects/demo/webhooks/").content.decode().count(receiver.url) == 1
    tried = client.post(url, {"do": "test"})
    delivery = Delivery.objects.get()
    assert tried["Location"] == f"/webhook-deliveries/{delivery.pk}/"
    deliver(delivery.pk)
    assert "Delivered" in client.get(tried["Location"]).content.decode()
    assert client.post(tried["Location"]).status_code == 302 and Delivery.objects.count() == 2
    assert "whsec_" in client.post(url, {"do": "rotate"}).content.decode()
    client.post(url, {"do": "switch"})
    assert "Off" in client.get(url + "?state=delivered").content.decode()
    assert client.post(url, {"do": "delete"})["Location"] == "/projects/demo/webhooks/"
    assert not Webhook.objects.exists()
