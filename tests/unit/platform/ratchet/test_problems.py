"""Errors of the API as problem documents."""

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, OperationalError
from django.http import Http404
from psycopg.errors import DeadlockDetected
from rest_framework import exceptions, serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from ratchet.problems import Problem, flatten_errors, problem_handler


class Inner(serializers.Serializer):
    rank = serializers.IntegerField(min_value=1)


class Outer(serializers.Serializer):
    name = serializers.CharField()
    lora = Inner()
    tags = serializers.ListField(child=serializers.IntegerField())
    items = Inner(many=True)


def handled(error: Exception) -> Response:
    response = problem_handler(error, {})
    assert response is not None
    return response


def test_validation_names_every_path() -> None:
    serializer = Outer(data={"lora": {"rank": 0}, "tags": [1, "x"], "items": [{"rank": 1}, {}]})
    assert not serializer.is_valid()
    response = handled(exceptions.ValidationError(serializer.errors))
    assert response.status_code == 400
    assert response.data["code"] == "invalid"
    paths = [error["path"] for error in response.data["errors"]]
    assert sorted(paths) == ["items.1.rank", "lora.rank", "name", "tags.1"]
    assert all(error["message"] for error in response.data["errors"])


def test_errors_without_a_field_have_an_empty_path() -> None:
    assert flatten_errors({"non_field_errors": ["splits overlap"]}) == [{"path": "", "message": "splits overlap"}]
    assert flatten_errors({"a": {"non_field_errors": ["x"]}}) == [{"path": "a", "message": "x"}]
    assert flatten_errors(["broken"]) == [{"path": "", "message": "broken"}]


def test_known_errors_have_stable_codes() -> None:
    cases = [
        (Http404(), 404, "not_found"),
        (PermissionDenied(), 403, "permission_denied"),
        (exceptions.PermissionDenied(), 403, "permission_denied"),
        (exceptions.ParseError(), 400, "malformed_body"),
        (exceptions.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (exceptions.UnsupportedMediaType("text/x"), 415, "unsupported_media_type"),
        (Problem("spec_invalid", 422, "no such model"), 422, "spec_invalid"),
    ]
    for error, status, code in cases:
        response = handled(error)
        assert (response.status_code, response.data["status"], response.data["code"]) == (status, status, code)
        assert response.data["detail"] and response.data["title"]
        assert response.content_type == "application/problem+json"


def test_headers_of_challenges_and_waits_survive() -> None:
    refused = exceptions.NotAuthenticated()
    refused.auth_header = "Bearer"
    assert handled(refused)["WWW-Authenticate"] == "Bearer"
    assert handled(exceptions.Throttled(wait=30))["Retry-After"] == "30"


def test_unknown_errors_are_left_to_the_server() -> None:
    assert problem_handler(RuntimeError("secret"), {}) is None


def test_body_is_json_of_the_problem() -> None:
    response = handled(Problem("suite_invalid", 422, "line 3: no prompt", [{"path": "3.prompt", "message": "missing"}]))
    response.accepted_renderer = JSONRenderer()
    response.accepted_media_type = "application/json"
    response.renderer_context = {}
    assert b'"errors":[{"path":"3.prompt","message":"missing"}]' in response.render().content
    assert response["Content-Type"] == "application/problem+json"


def test_a_lost_race_is_a_conflict_and_a_database_that_is_away_is_not() -> None:
    deadlock = OperationalError("deadlock detected")
    deadlock.__cause__ = DeadlockDetected()
    for error in (IntegrityError("duplicate key"), deadlock):
        response = handled(error)
        assert (response.status_code, response.data["code"]) == (409, "conflict")
        assert "duplicate" not in response.data["detail"]
    assert problem_handler(OperationalError("server closed the connection"), {}) is None


def test_what_breaks_below_api_is_a_problem_and_elsewhere_a_page(client, monkeypatch) -> None:
    client.raise_request_exception = False

    def broken(*_, **__):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("apps.accounts.api.views.TokenList.initial", broken)
    response = client.get("/api/v1/tokens/")
    assert (response.status_code, response["Content-Type"]) == (500, "application/problem+json")
    assert response.json()["code"] == "internal_error" and b"secret" not in response.content
    monkeypatch.setattr("ratchet.pages.render", broken)
    assert "text/html" in client.get("/nothing/here/")["Content-Type"]
