"""Creating with an Idempotency-Key: once, whatever is repeated."""

from datetime import timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory, force_authenticate

from apps.accounts.models import IdempotencyKey, Membership, Project, Role, User
from ratchet.endpoints import Endpoint

pytestmark = pytest.mark.django_db


class Things(Endpoint):
    permission_classes = [AllowAny]
    made: list[object] = []
    fail_with: int = 0

    @extend_schema(request=OpenApiTypes.OBJECT, responses=OpenApiTypes.OBJECT)
    def post(self, request):
        if self.fail_with:
            return Response({"no": 1}, status=self.fail_with)
        self.made.append(request.data)
        return Response({"number": len(self.made)}, status=201)


@pytest.fixture
def things():
    class Fresh(Things):
        made: list[object] = []

    return Fresh


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ada")


def post(things, user: User, body: object, key: str = "", path: str = "/things/") -> Response:
    headers = {"Idempotency-Key": key} if key else {}
    request = APIRequestFactory().post(path, body, format="json", headers=headers)
    force_authenticate(request, user)
    return things.as_view()(request)


def test_same_key_and_body_create_once(things, user: User) -> None:
    first, again = (post(things, user, {"a": 1, "b": 2}, "k1") for _ in range(2))
    assert first.status_code == again.status_code == 201
    assert first.data == again.data == {"number": 1}
    assert "Idempotent-Replay" not in first and again["Idempotent-Replay"] == "true"
    assert len(things.made) == 1


def test_order_of_fields_is_no_difference(things, user: User) -> None:
    post(things, user, {"a": 1, "b": 2}, "k1")
    assert post(things, user, {"b": 2, "a": 1}, "k1").status_code == 201
    assert len(things.made) == 1


def test_another_body_or_path_is_refused(things, user: User) -> None:
    post(things, user, {"a": 1}, "k1")
    for refused in (post(things, user, {"a": 2}, "k1"), post(things, user, {"a": 1}, "k1", path="/others/")):
        assert refused.status_code == 422
        assert refused.data["code"] == "idempotency_key_reused"
    assert len(things.made) == 1


def test_a_request_in_flight_is_a_conflict(things, user: User) -> None:
    post(things, user, {"a": 1}, "k1")
    IdempotencyKey.objects.update(status_code=None, response=None)
    refused = post(things, user, {"a": 1}, "k1")
    assert refused.status_code == 409
    assert refused.data["code"] == "idempotency_in_flight"


def test_a_key_whose_process_was_killed_is_taken_over(things, user: User) -> None:
    post(things, user, {"a": 1}, "k1")
    long_ago = timezone.now() - timedelta(minutes=11)
    IdempotencyKey.objects.update(status_code=None, response=None, created_at=long_ago)
    assert post(things, user, {"a": 1}, "k1").data == {"number": 2}
    assert post(things, user, {"a": 1}, "k1").data == {"number": 2}


def test_keys_belong_to_their_user_and_are_optional(things, user: User) -> None:
    other = User.objects.create_user("grace")
    post(things, user, {"a": 1}, "k1")
    assert post(things, other, {"a": 1}, "k1").data == {"number": 2}
    post(things, user, {"a": 1})
    post(things, user, {"a": 1})
    assert len(things.made) == 4


def test_a_failed_request_frees_its_key(things, user: User) -> None:
    things.fail_with = 503
    assert post(things, user, {"a": 1}, "k1").status_code == 503
    things.fail_with = 0
    assert post(things, user, {"a": 1}, "k1").status_code == 201


def test_a_refusal_is_remembered_as_a_problem(things, user: User) -> None:
    things.fail_with = 422
    post(things, user, {"a": 1}, "k1")
    things.fail_with = 0
    again = post(things, user, {"a": 1}, "k1")
    assert again.status_code == 422 and again.data == {"no": 1}
    assert things.made == []


def test_a_key_too_long_is_refused(things, user: User) -> None:
    assert post(things, user, {}, "k" * 201).data["code"] == "idempotency_key_invalid"


def test_an_answer_is_not_replayed_to_who_lost_the_right_to_it(things, user: User) -> None:
    project = Project.objects.create(slug="lab", title="Lab")
    member = Membership.objects.create(project=project, user=user, role=Role.ENGINEER)
    post(things, user, {"a": 1}, "k1")
    for role, status in ((Role.ADMIN, 201), (Role.VIEWER, 403), (Role.ENGINEER, 201)):
        Membership.objects.filter(pk=member.pk).update(role=role)
        assert post(things, user, {"a": 1}, "k1").status_code == status
    member.delete()
    refused = post(things, user, {"a": 1}, "k1")
    assert (refused.status_code, refused.data["code"]) == (403, "forbidden")
    assert len(things.made) == 1


def test_an_answer_to_a_superuser_is_not_replayed_to_who_is_none_any_more(things, user: User) -> None:
    user.is_superuser = True
    user.save()
    post(things, user, {"a": 1}, "k1")
    user.is_superuser = False
    user.save()
    assert post(things, user, {"a": 1}, "k1").status_code == 403


def test_a_key_that_a_refusal_frees_at_that_moment_is_a_conflict(things, user: User, monkeypatch) -> None:
    def taken(**_):
        raise IntegrityError  # the row was there, and is gone when it is read

    monkeypatch.setattr(IdempotencyKey.objects, "create", taken)
    refused = post(things, user, {"a": 1}, "k1")
    assert (refused.status_code, refused.data["code"]) == (409, "idempotency_in_flight")
