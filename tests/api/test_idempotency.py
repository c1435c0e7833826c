"""64 clients with the same key at once: one run, one audit event, and every client ends with the same answer."""

import threading
import time
from collections import Counter

import pytest
from django.db import connection
from django.test import Client

from apps.accounts.models import IdempotencyKey
from apps.accounts.services import issue_token
from apps.audit.models import AuditEvent
from apps.runs.models import Run
from tests.support.worlds import make_world, run_spec

pytestmark = pytest.mark.django_db(transaction=True)
NUM_CLIENTS = 64


@pytest.fixture
def ask(settings, tmp_path, monkeypatch):
    """Posts to /runs/ as the engineer, with a token as a program would."""
    settings.OBJECT_STORE_URL = f"file://{tmp_path}"
    monkeypatch.setattr("apps.runs.messaging.request_advance", lambda *_, **__: None)
    world = make_world()
    secret = issue_token(user=world.engineer, name="ci", by=None).secret

    def post(key: str, **changes: object):
        body = {"project": "lab", "spec": run_spec(**changes)}
        headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": key}
        return Client().post("/api/v1/runs/", body, content_type="application/json", headers=headers)

    return post


def test_the_same_key_at_once_makes_one_run(ask):
    answers: list[tuple[int, str]] = []
    start = threading.Barrier(NUM_CLIENTS)

    def client() -> None:
        try:
            start.wait(timeout=60)
            for _ in range(100):  # what a client does: asks again while the first request is in flight
                response = ask("the-key")
                if response.status_code != 409:
                    break
                assert response.json()["code"] == "idempotency_in_flight"
                time.sleep(0.05)
            answers.append((response.status_code, response.json().get("id", "")))
        finally:
            connection.close()

    threads = [threading.Thread(target=client) for _ in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    run = Run.objects.get()
    assert Counter(answers) == {(202, str(run.pk)): NUM_CLIENTS}
    assert AuditEvent.objects.filter(tag="user:run:submit").count() == 1
    assert ask("the-key", steps=9).json()["code"] == "idempotency_key_reused"
    assert ask("another-key").status_code == 202 and Run.objects.count() == 2


def test_a_process_that_is_killed_leaves_neither_run_nor_answer(ask, monkeypatch):
    """What is made and its stored answer are committed together: there is no moment with one of them."""

    class Killed(BaseException):
        pass

    def kill(self, *args, **kwargs):
        if kwargs.get("update_fields"):
            raise Killed
        return IdempotencyKey._save(self, *args, **kwargs)

    monkeypatch.setattr(IdempotencyKey, "_save", IdempotencyKey.save, raising=False)
    monkeypatch.setattr(IdempotencyKey, "save", kill)
    with pytest.raises(Killed):
        ask("the-key")
    assert not Run.objects.exists()
    assert IdempotencyKey.objects.get().status_code is None, "still in flight, as for a process that died"
    monkeypatch.undo()
    monkeypatch.setattr("apps.runs.messaging.request_advance", lambda *_, **__: None)
    assert ask("the-key").json()["code"] == "idempotency_in_flight"
