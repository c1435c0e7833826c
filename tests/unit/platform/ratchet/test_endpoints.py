"""What every endpoint does alike: strict queries and bodies, sparse answers, ETags, deprecation."""

from datetime import UTC, datetime

import pytest
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory

from ratchet.bodies import read_body
from ratchet.endpoints import Deprecation, Endpoint, etag_of, require_match

THING = {"name": "a", "size": 3}


class Part(serializers.Serializer):
    rank = serializers.IntegerField(min_value=1)


class Body(serializers.Serializer):
    name = serializers.CharField()
    size = serializers.IntegerField(required=False)
    parts = Part(many=True, required=False)
    made = serializers.CharField(read_only=True)


class Thing(Endpoint):
    permission_classes = [AllowAny]
    authentication_classes = []

    @extend_schema(parameters=[OpenApiParameter("tag", str, many=True), OpenApiParameter("page", int)], responses=Body)
    def get(self, request):
        return Response(dict(THING))

    @extend_schema(request=Body, responses=Body)
    def put(self, request):
        require_match(request, THING)
        return Response(read_body(request, Body))

    @extend_schema(request=None, responses={204: None})
    def delete(self, request):
        return Response(status=204)


class Old(Thing):
    deprecation = Deprecation(datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC), "/api/v1/new/")


def ask(method: str, path: str = "/thing/", body: object = None, view: type[Endpoint] = Thing, **headers: str):
    request = getattr(APIRequestFactory(), method)(path, body, format="json", headers=headers)
    return view.as_view()(request)


def paths(answer) -> list[str]:
    return [error["path"] for error in answer.data["errors"]]


def test_every_wrong_and_every_unknown_field_is_named_at_once():
    sent = {"size": "x", "colour": 1, "made": "me", "parts": [{"rank": 1, "depth": 2}, {"rank": 0}]}
    answer = ask("put", body=sent)
    assert answer.status_code == 400 and answer.data["code"] == "invalid"
    assert sorted(paths(answer)) == ["colour", "made", "name", "parts.0.depth", "parts.1.rank", "size"]
    assert ask("put", body={"name": "b"}).data == {"name": "b"}


@pytest.mark.parametrize("body", [[1], "text", 7])
def test_a_body_that_is_no_object_is_refused(body):
    assert ask("put", body=body).status_code == 400


def test_a_method_without_a_body_takes_none():
    assert ask("delete").status_code == 204
    assert paths(ask("delete", body={"force": True})) == ["force"]


@pytest.mark.parametrize(
    ("query", "wrong"), [("?tga=1", "tga"), ("?page=1&page=2", "page"), ("?tag=1&tag=2&x=1", "x"), ("?tag=1&tag=2", "")]
)
def test_parameters_that_nothing_reads_or_that_come_twice_are_refused(query, wrong):
    answer = ask("get", f"/thing/{query}")
    assert (paths(answer) if answer.status_code == 400 else [""]) == [wrong]


def test_only_the_named_fields_are_shown():
    assert ask("get", "/thing/?fields=size").data == {"size": 3}
    refused = ask("get", "/thing/?fields=size,weight")
    assert refused.status_code == 400 and "'weight' unknown; fields: name, size" in refused.data["errors"][0]["message"]
    assert ask("get", "/thing/?fields=").status_code == 400


def test_an_etag_saves_the_answer_and_guards_the_change():
    tag = ask("get")["ETag"]
    assert tag == etag_of(THING)
    assert ask("get", "/thing/?fields=size")["ETag"] == tag  # of what is there, not of what was asked for
    unchanged = ask("get", **{"If-None-Match": tag})
    assert unchanged.status_code == 304 and not unchanged.data
    assert ask("put", body={"name": "b"}, **{"If-Match": tag}).status_code == 200
    lost = ask("put", body={"name": "b"}, **{"If-Match": '"another"'})
    assert (lost.status_code, lost.data["code"]) == (412, "precondition_failed")
    for garbage in ("", tag.strip('"'), f'"x", {tag}x', "W/", "*, *", '"'):
        refused = ask("put", body={"name": "b"}, **{"If-Match": garbage})
        assert (refused.status_code, refused.data["code"]) == (400, "invalid"), garbage
    for right in ("*", f'"other", {tag}', f" {tag} "):
        assert ask("put", body={"name": "b"}, **{"If-Match": right}).status_code == 200


def test_a_deprecated_endpoint_says_so_in_every_answer():
    for answer in (ask("get", view=Old), ask("put", body={}, view=Old)):
        assert answer["Deprecation"] == "@1767225600"
        assert answer["Sunset"] == "Fri, 01 Jan 2027 00:00:00 GMT"
        assert answer["Link"] == '</api/v1/new/>; rel="successor-version"'
    assert "Deprecation" not in ask("get")
