"""The root of the API: every list, and the document, by address; open to whoever asks."""

import pytest
from django.test import Client
from django.urls import resolve

from ratchet.endpoints import ListEndpoint


@pytest.fixture
def found() -> dict[str, str]:
    answer = Client().get("/api/v1/")
    assert answer.status_code == 200
    return answer.json()


def test_lists_and_document_are_named_by_whole_addresses(found):
    assert found["runs"] == "http://testserver/api/v1/runs/"
    assert found["base-models"] == "http://testserver/api/v1/base-models/"
    assert found["schema"] == "http://testserver/api/v1/schema/" and found["docs"] == "http://testserver/api/docs/"
    others = {"me", "schema", "docs", "redoc"}
    for name in found.keys() - others:
        view = resolve(found[name].removeprefix("http://testserver")).func
        assert issubclass(view.cls, ListEndpoint), name
    assert {"projects", "suites", "policies", "channels", "runs", "episodes", "evaluations", "gates"} <= found.keys()


def test_only_the_fields_that_are_asked_for():
    assert list(Client().get("/api/v1/?fields=runs").json()) == ["runs"]
    assert Client().get("/api/v1/?colour=red").json()["code"] == "unknown_parameter"
