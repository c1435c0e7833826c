"""Sign-in and the account page."""

import pytest
from django.test import Client

from apps.accounts.models import ApiToken
from apps.accounts.services import issue_token


@pytest.fixture
def page(engineer) -> Client:
    client = Client()
    client.force_login(engineer)
    return client


def test_a_wrong_password_keeps_the_name_and_says_so(client: Client, engineer):
    response = client.post("/accounts/login/", {"username": "ed", "password": "wrong", "next": "/runs/"})
    text = response.content.decode()
    assert response.status_code == 200
    assert 'value="ed"' in text
    assert 'value="/runs/"' in text
    assert "wrong" not in text
    right = client.post("/accounts/login/", {"username": "ed", "password": "a good password", "next": "/runs/"})
    assert right["Location"] == "/runs/"


def test_sign_in_does_not_lead_off_the_site(client: Client, engineer):
    data = {"username": "ed", "password": "a good password", "next": "https://elsewhere.example/"}
    assert client.post("/accounts/login/", data)["Location"] == "/"


def test_a_token_is_shown_in_one_answer_only(page: Client, engineer):
    response = page.post("/account/", {"name": "ci", "scopes": "run:read", "days": "30"})
    token = ApiToken.objects.get(name="ci")
    text = response.content.decode()
    secret = text.split('class="secret">')[1].split("<")[0]
    assert secret.startswith(token.prefix)
    assert response["Cache-Control"] == "no-store"
    assert token.scopes == ["run:read"]
    assert secret not in page.get("/account/").content.decode()


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"name": "ci", "scopes": "run:fly", "days": "30"}, "&#39;run:fly&#39; is unknown"),
        ({"name": "", "scopes": "", "days": "30"}, "Give the token a name."),
        ({"name": "ci", "scopes": "", "days": "many"}, "must be a whole number"),
        ({"name": "ci", "scopes": "", "days": "4000"}, "must be between 1 and 366"),
    ],
)
def test_a_refused_token_keeps_what_was_typed(page: Client, typed, words):
    text = page.post("/account/", typed).content.decode()
    assert words in text
    assert f'value="{typed["days"]}"' in text
    assert not ApiToken.objects.exists()


def test_only_ones_own_tokens_can_be_revoked(page: Client, engineer, reviewer):
    mine = issue_token(user=engineer, name="mine", by=engineer).token
    theirs = issue_token(user=reviewer, name="theirs", by=reviewer).token
    assert page.post(f"/account/tokens/{theirs.pk}/revoke/").status_code == 404
    assert page.post(f"/account/tokens/{mine.pk}/revoke/").status_code == 302
    mine.refresh_from_db()
    theirs.refresh_from_db()
    assert mine.revoked_at is not None
    assert theirs.revoked_at is None
