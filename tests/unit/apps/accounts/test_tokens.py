"""Tokens: issued once, hashed, scoped, expiring, revocable, never wider than what made them."""

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from apps.accounts.authentication import find_token
from apps.accounts.models import ApiToken
from apps.accounts.selectors import introspect
from apps.accounts.services import issue_token, revoke_token
from apps.audit.models import AuditEvent
from ratchet.problems import Problem


def bearer(secret: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


@pytest.fixture
def issued(engineer):
    return issue_token(user=engineer, name="laptop", by=engineer)


def test_the_secret_opens_the_api_and_is_stored_nowhere(issued, engineer):
    answer = bearer(issued.secret).get("/api/v1/me/")
    assert (answer.status_code, answer.json()["username"]) == (200, "ed")
    assert "run:create" in answer.json()["projects"][0]["permissions"]
    stored = str(list(ApiToken.objects.values())) + str(list(AuditEvent.objects.values()))
    assert issued.secret not in stored
    assert issued.token.prefix == issued.secret[:12]


@pytest.mark.parametrize("header", ["Bearer rt_wrong", "Bearer", "Bearer a b", "Bearer \xff"])
def test_a_bad_header_is_401_with_a_challenge(issued, header):
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)
    answer = client.get("/api/v1/me/")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["code"] == "authentication_failed"


def test_a_token_without_the_right_to_tokens_sees_and_ends_only_itself(engineer):
    def issue(*scopes: str):
        return issue_token(user=engineer, name="t", by=engineer, scopes=scopes)

    wide, narrow, keeper = issue(), issue("run:read"), issue("run:read", "token:create")
    client = bearer(narrow.secret)
    assert [row["id"] for row in client.get("/api/v1/tokens/").json()["results"]] == [str(narrow.token.pk)]
    for method in (client.get, client.delete):
        assert method(f"/api/v1/tokens/{wide.token.pk}/").status_code == 404
    assert client.delete(f"/api/v1/tokens/{narrow.token.pk}/").status_code == 204
    assert client.get("/api/v1/tokens/").status_code == 401
    assert len(bearer(keeper.secret).get("/api/v1/tokens/").json()["results"]) == 3
    assert bearer(keeper.secret).delete(f"/api/v1/tokens/{wide.token.pk}/").status_code == 204


@pytest.mark.parametrize("name", ["a\u202eb", "a\u2066b", "a\x1b[2J", "a\nb", "a\u200bb"])
def test_a_name_that_shows_as_another_is_refused(engineer, client_of, name):
    answer = client_of(engineer).post("/api/v1/tokens/", {"name": name})
    assert answer.status_code == 400 and answer.json()["errors"][0]["path"] == "name"
    assert client_of(engineer).post("/api/v1/tokens/", {"name": "Zoë’s laptop 🚀"}).status_code == 201


def test_expired_revoked_and_deactivated_tokens_are_refused(issued, engineer):
    client = bearer(issued.secret)
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get("/api/v1/me/").status_code == 401
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(days=1))
    assert client.get("/api/v1/me/").status_code == 200
    engineer.is_active = False
    engineer.save()
    assert client.get("/api/v1/me/").status_code == 401
    engineer.is_active = True
    engineer.save()
    revoke_token(token=issued.token, by=engineer)
    assert client.get("/api/v1/me/").status_code == 401


def test_last_use_is_written_at_most_once_a_minute(issued, django_assert_num_queries):
    client = bearer(issued.secret)
    client.get("/api/v1/me/")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    client.get("/api/v1/me/")
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(minutes=2))
    client.get("/api/v1/me/")
    assert ApiToken.objects.get().last_used_at > first


def test_a_scoped_token_cannot_widen_itself(engineer, project):
    narrow = issue_token(user=engineer, name="ci", by=engineer, scopes=["token:create", "run:read"], days=2)
    client = bearer(narrow.secret)
    body = {"name": "next", "scopes": ["run:read"], "days": 300}
    child = client.post("/api/v1/tokens/", body)
    assert child.status_code == 201
    assert child.json()["expires_at"] <= narrow.token.expires_at.isoformat().replace("+00:00", "Z")
    for scopes in ([], ["run:create"]):
        answer = client.post("/api/v1/tokens/", {"name": "wider", "scopes": scopes})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (403, "scopes")
    without = issue_token(user=engineer, name="ci", by=engineer, scopes=["run:read"])
    assert bearer(without.secret).post("/api/v1/tokens/", {"name": "x", "scopes": ["run:read"]}).status_code == 403
    assert bearer(without.secret).get("/api/v1/projects/demo/members/").status_code == 403


def test_a_token_of_one_project_stays_there(engineer, project, other_project):
    local = issue_token(user=engineer, name="local", by=engineer, project=project)
    client = bearer(local.secret)
    assert [row["slug"] for row in client.get("/api/v1/projects/").json()["results"]] == ["demo"]
    assert client.post("/api/v1/tokens/", {"name": "anywhere"}).status_code == 403
    assert client.post("/api/v1/tokens/", {"name": "here", "project": "demo"}).status_code == 201


def test_unknown_scopes_and_lives_are_named(engineer, client_of):
    client = client_of(engineer)
    answer = client.post("/api/v1/tokens/", {"name": "x", "scopes": ["run:fly"]})
    assert (answer.status_code, answer.json()["errors"]) == (
        400,
        [{"path": "scopes", "message": "'run:fly' is unknown"}],
    )
    assert client.post("/api/v1/tokens/", {"name": "x", "days": 4000}).json()["errors"][0]["path"] == "days"


def test_only_the_owner_sees_and_revokes(issued, engineer, stranger, client_of):
    url = f"/api/v1/tokens/{issued.token.pk}/"
    assert client_of(stranger).delete(url).status_code == 404
    assert find_token(issued.secret) is not None
    mine = client_of(engineer)
    assert mine.get(url).json()["name"] == "laptop"
    assert "digest" not in mine.get(url).json()
    assert mine.delete(url).status_code == 204
    assert find_token(issued.secret) is None
    assert mine.delete(url).status_code == 204  # repeating it changes nothing
    assert AuditEvent.objects.filter(tag="user:token:revoke").count() == 1


def test_nobody_issues_for_somebody_else(engineer, viewer):
    with pytest.raises(Problem, match="only be issued for yourself"):
        issue_token(user=viewer, name="x", by=engineer)


def test_introspection_says_which_channels_may_be_called(issued, engineer, project, other_project):
    found = introspect(issued.secret)
    assert (found.active, found.user, found.projects) == (True, "ed", ("demo",))
    narrow = issue_token(user=engineer, name="n", by=engineer, scopes=["run:read"])
    assert introspect(narrow.secret).projects == ()
    assert not introspect("rt_nothing").active
