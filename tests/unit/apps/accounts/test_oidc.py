"""Sign-in by an OpenID Connect provider that really answers: who is linked or invited comes in, nobody else."""

from collections.abc import Iterator

import pytest
from django.test import Client

from apps.accounts.invitations import invite
from apps.accounts.models import Membership, User
from apps.accounts.oidc import PROVIDER
from tests.support.oidc import Provider

START = f"/accounts/oidc/{PROVIDER}/login/"
CLAIMS = {"sub": "42", "email": "nina@example.org", "email_verified": True, "preferred_username": "nina"}


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    provider = Provider(dict(CLAIMS))
    yield provider
    provider.stop()


@pytest.fixture
def provider(server: Provider, settings) -> Provider:
    server.claims, server.spoil = dict(CLAIMS), {}
    app = {"provider_id": PROVIDER, "name": "Acme", "client_id": server.client_id, "secret": server.client_secret}
    app["settings"] = {"server_url": server.url}
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}
    settings.OIDC_ORIGIN, settings.OIDC_NAME = server.url, "Acme"
    return server


def sign_in(client: Client, provider: Provider, query: str = ""):
    """The whole way of a browser: our form, the provider, back to us. Returns our last answer."""
    started = client.post(START + query)
    assert started.status_code == 302 and started["Location"].startswith(f"{provider.url}/authorise?")
    return client.get(provider.authorise(started["Location"]))


def who(client: Client) -> str:
    return client.get("/api/v1/me/").json().get("username", "")


def test_a_stranger_is_told_what_to_do(client: Client, provider: Provider, db):
    answer = sign_in(client, provider)
    assert answer.status_code == 403
    assert "not known here" in answer.content.decode() and "invitation" in answer.content.decode()
    assert not User.objects.exists() and who(client) == ""


@pytest.mark.parametrize("answer", [b"ok <script>", b"[1]", b"{}", b""])
def test_a_provider_that_answers_something_else_is_said(client: Client, provider: Provider, db, answer, monkeypatch):
    monkeypatch.setattr(provider, "discovery", lambda: answer)
    page = client.post(START)
    assert page.status_code == 502
    assert "Acme cannot be asked who you are" in page.content.decode()


def test_a_provider_that_does_not_answer_is_said(client: Client, provider: Provider, db, settings):
    (app,) = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
    app["settings"]["server_url"] = "http://127.0.0.1:9"  # nobody listens there
    page = client.post(START)
    assert page.status_code == 502
    assert "Acme cannot be asked who you are" in page.content.decode()


def test_an_equal_address_links_nothing(client: Client, provider: Provider, engineer):
    User.objects.filter(pk=engineer.pk).update(email=CLAIMS["email"])
    assert sign_in(client, provider).status_code == 403
    assert who(client) == ""


def test_who_connects_the_account_signs_in_by_it(client: Client, provider: Provider, engineer):
    client.force_login(engineer)
    connected = sign_in(client, provider, "?process=connect")
    assert connected["Location"] == "/account/"
    assert "Connected with Acme" in client.get("/account/").content.decode()
    fresh = Client()
    assert sign_in(fresh, provider).status_code == 302
    assert who(fresh) == "ed"
    User.objects.filter(pk=engineer.pk).update(is_active=False)
    assert sign_in(Client(), provider).status_code == 403


def test_an_invited_person_gets_an_account_and_the_role(client: Client, provider: Provider, project, owner):
    sent = invite(project=project, email="somebody@example.org", role="reviewer", by=owner)
    assert client.get(sent.path).status_code == 200  # the link, not the address, is what counts
    assert sign_in(client, provider).status_code == 302
    assert who(client) == "nina"
    member = Membership.objects.get(user__username="nina")
    assert (member.project, member.role, member.user.has_usable_password()) == (project, "reviewer", False)
    again = Client()
    assert sign_in(again, provider).status_code == 302
    assert who(again) == "nina" and User.objects.filter(username="nina").count() == 1


@pytest.mark.parametrize(("verified", "comes_in"), [(True, True), (False, False)])
def test_an_address_counts_as_invited_only_where_the_provider_verified_it(
    client: Client, provider: Provider, project, owner, verified, comes_in
):
    invite(project=project, email="Nina@example.org", role="viewer", by=owner)
    provider.claims["email_verified"] = verified
    assert sign_in(client, provider).status_code == (302 if comes_in else 403)
    assert Membership.objects.filter(user__username="nina").exists() is comes_in


@pytest.mark.parametrize("spoil", [{"aud": "another"}, {"iss": "https://elsewhere.example"}, {"exp": 1}])
def test_a_token_of_another_issuer_audience_or_time_is_refused(client: Client, provider: Provider, db, spoil):
    provider.spoil = spoil
    answer = sign_in(client, provider)
    assert answer.status_code == 403 and "Acme did not confirm who you are" in answer.content.decode()


def test_an_answer_that_nobody_asked_for_is_refused(client: Client, provider: Provider, db):
    started = client.post(START)
    back = provider.authorise(started["Location"])
    stranger = Client()  # no session of its own: the state is unknown to it
    assert stranger.get(back).status_code == 403
    assert client.get(back.replace("state=", "state=x")).status_code == 403


def test_the_sign_in_page_offers_it_and_may_lead_there(client: Client, provider: Provider, db):
    page = client.get("/accounts/login/")
    assert "Sign in with Acme" in page.content.decode()
    assert f"form-action 'self' {provider.url}" in page["Content-Security-Policy"]
    assert client.get(START).status_code == 200  # asks first: a link of somebody else's must not sign anyone in


def test_without_a_provider_there_is_no_such_door(client: Client, db):
    assert "Sign in with" not in client.get("/accounts/login/").content.decode()
    assert client.post(START).status_code == 404
