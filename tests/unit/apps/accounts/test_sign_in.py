"""Guessing passwords is stopped, sessions end when they should, and callers cannot ask without end."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.test import Client
from django.utils import timezone

from apps.accounts import throttles
from apps.accounts.authentication import find_token
from apps.accounts.models import Membership, User
from apps.accounts.services import issue_token
from apps.audit.models import AuditEvent
from ratchet.services.processes import PROCESSES

RIGHT = "a good password"


@pytest.fixture(autouse=True)
def fresh_counts():
    caches["shared"].clear()


def try_password(client: Client, username: str, password: str, address: str = "10.0.0.1"):
    return client.post("/accounts/login/", {"username": username, "password": password}, REMOTE_ADDR=address)


def test_a_name_is_locked_from_the_address_that_guesses(client: Client, engineer, settings):
    for _ in range(settings.AXES_FAILURE_LIMIT):
        answer = try_password(client, "ed", "wrong")
    assert answer.status_code == 429
    assert answer["Retry-After"] == "900" and "wait 15 minutes" in answer.content.decode()
    assert try_password(client, "ed", RIGHT).status_code == 429, "the right one is not told apart while locked"
    assert try_password(client, "ed", RIGHT, "10.0.0.2").status_code == 302, "nobody locks others out from afar"
    assert AuditEvent.objects.filter(tag="system:session:lock").exists()


def test_names_that_do_not_exist_are_locked_just_the_same(client: Client, db, settings):
    answers = [try_password(client, "nobody", "wrong").status_code for _ in range(settings.AXES_FAILURE_LIMIT)]
    assert answers[-1] == 429


def test_a_right_password_in_time_forgets_the_wrong_ones(client: Client, engineer, settings):
    for _ in range(settings.AXES_FAILURE_LIMIT - 1):
        assert try_password(client, "ed", "wrong").status_code == 200
    assert try_password(client, "ed", RIGHT).status_code == 302
    client.logout()
    assert try_password(client, "ed", "wrong").status_code == 200
    assert AuditEvent.objects.filter(tag="user:session:sign_in", actor_name="ed").count() == 1


def test_sign_ins_of_one_address_are_counted_whatever_the_name(client: Client, db, settings, monkeypatch):
    monkeypatch.setattr(throttles, "time", SimpleNamespace(time=lambda: 1030.0))  # 50 s before the next minute
    settings.RATCHET_RATES = {**settings.RATCHET_RATES, "sign_in": 3}
    assert [try_password(client, f"u{n}", "wrong").status_code for n in range(4)] == [200, 200, 200, 429]
    for refused in (try_password(client, "u9", "wrong"), client.get("/invitations/x/", REMOTE_ADDR="10.0.0.1")):
        assert (refused.status_code, refused["Retry-After"]) == (429, "50")


def test_a_new_password_ends_the_other_sessions(engineer):
    here, elsewhere = Client(), Client()
    for client in (here, elsewhere):
        client.force_login(engineer)
    refused = here.post(
        "/account/password/", {"old_password": RIGHT, "new_password1": "short", "new_password2": "short"}
    )
    assert refused.status_code == 200 and "at least 12 characters" in refused.content.decode()
    new = "seven green lamps"
    assert (
        here.post("/account/password/", {"old_password": RIGHT, "new_password1": new, "new_password2": new}).status_code
        == 302
    )
    assert here.get("/api/v1/me/").status_code == 200
    assert elsewhere.get("/api/v1/me/").status_code == 401
    assert AuditEvent.objects.filter(tag="user:account:change_password").count() == 1


def test_a_role_that_is_taken_ends_at_once_in_sessions_and_tokens(project, owner, engineer):
    client = Client()
    client.force_login(engineer)
    secret = issue_token(user=engineer, name="ci", by=engineer, project=project).secret
    bearer = {"Authorization": f"Bearer {secret}"}
    for headers in ({}, bearer):
        assert Client().get("/api/v1/projects/demo/", headers=bearer).status_code == 200
        assert client.get("/api/v1/projects/demo/", headers=headers).status_code == 200
    Membership.objects.filter(user=engineer).delete()
    assert client.get("/api/v1/projects/demo/").status_code == 404
    assert Client().get("/api/v1/projects/demo/", headers=bearer).status_code == 404
    User.objects.filter(pk=engineer.pk).update(is_active=False)
    assert client.get("/api/v1/me/").status_code == 401
    assert Client().get("/api/v1/me/", headers=bearer).status_code == 401


def test_a_token_ends_when_it_was_asked_to(engineer, client_of):
    client, now = client_of(engineer), timezone.now()
    until = (now + timedelta(days=3)).isoformat()
    made = client.post("/api/v1/tokens/", {"name": "ci", "expires_at": until})
    assert made.status_code == 201
    token = find_token(made.json()["token"])
    assert token is not None and token.expires_at.isoformat() == until
    for wrong, path in (
        ({"expires_at": (now - timedelta(seconds=1)).isoformat()}, "expires_at"),
        ({"expires_at": (now + timedelta(days=400)).isoformat()}, "expires_at"),
        ({"expires_at": until, "days": 3}, "expires_at"), ({"expires": until}, "expires"), ({"days": 0}, "days"),
    ):  # fmt: skip
        refused = client.post("/api/v1/tokens/", {"name": "ci", **wrong})
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, path), wrong
    token.expires_at = timezone.now()
    token.save()
    assert find_token(made.json()["token"]) is None
    assert Client().get("/api/v1/me/", headers={"Authorization": f"Bearer {made.json()['token']}"}).status_code == 401


def test_requests_are_counted_by_caller_and_kind(settings, engineer, viewer, client_of):
    settings.RATCHET_RATES = {**settings.RATCHET_RATES, "read": 3, "write": 1}
    client = client_of(engineer)
    assert [client.get("/api/v1/me/").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = client.get("/api/v1/me/")
    assert refused.json()["code"] == "throttled" and 0 <= int(refused["Retry-After"]) <= 60
    assert client_of(viewer).get("/api/v1/me/").status_code == 200
    assert client.post("/api/v1/tokens/", {"name": "ci"}).status_code == 201, "writes have a count of their own"
    assert client.post("/api/v1/tokens/", {"name": "ci"}).status_code == 429


def test_new_tokens_are_counted_on_page_and_api_alike(settings, engineer, client_of):
    settings.RATCHET_RATES = {**settings.RATCHET_RATES, "token": 1}
    page = Client()
    page.force_login(engineer)
    assert "never shown again" in page.post("/account/", {"name": "a", "scopes": "", "days": "3"}).content.decode()
    assert "Too many attempts" in page.post("/account/", {"name": "b", "scopes": "", "days": "3"}).content.decode()
    assert client_of(engineer).post("/api/v1/tokens/", {"name": "c"}).status_code == 429


def test_a_cache_that_is_down_refuses_nobody(settings, engineer, client_of):
    settings.CACHES = {
        **settings.CACHES,
        "shared": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
    }
    assert client_of(engineer).get("/api/v1/me/").status_code == 200


@pytest.mark.parametrize(("proxies", "seen"), [([], "127.0.0.1"), (["127.0.0.0/8"], "9.9.9.9")])
def test_only_a_named_proxy_says_from_where_somebody_comes(client: Client, monkeypatch, proxies, seen):
    """uvicorn itself reads no such header (`--no-proxy-headers`), and neither do axes, limits and the audit."""
    from ratchet.asgi import application

    scopes = []

    async def note(scope, receive, send):
        scopes.append(scope)

    monkeypatch.setattr(application, "app", note)
    if proxies:
        monkeypatch.setattr(application, "trusted_hosts", type(application.trusted_hosts)(proxies))
    headers = [(b"x-forwarded-for", b"1.1.1.1, 9.9.9.9")]
    scope = {"type": "http", "client": ("127.0.0.1", 5), "headers": headers, "scheme": "http"}
    async_to_sync(application)(scope, None, None)
    assert scopes[0]["client"][0] == seen
    web = next(spec for spec in PROCESSES if spec.name == "web")
    assert "--no-proxy-headers" in web.command


def test_a_forwarded_address_does_not_open_a_lock(client: Client, engineer, settings):
    for _ in range(settings.AXES_FAILURE_LIMIT):
        try_password(client, "ed", "wrong")
    sent = {"username": "ed", "password": RIGHT}
    for header in ("X-Forwarded-For", "X-Real-IP", "Forwarded"):
        answer = client.post("/accounts/login/", sent, REMOTE_ADDR="10.0.0.1", headers={header: "9.9.9.9"})
        assert answer.status_code == 429
