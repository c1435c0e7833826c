"""Requests that no view is asked about."""

import pytest

from apps.accounts.models import User


def post(client, path: str, **headers: str):
    return client.generic("POST", path, b'{"project": "lab"}', content_type="application/json", headers=headers)


@pytest.mark.django_db
def test_a_body_without_a_length_is_refused_and_not_taken_for_none(client) -> None:
    client.force_login(User.objects.create_user("ada", password="a good password"))
    answer = client.post("/api/v1/runs/validate/", {}, headers={"Transfer-Encoding": "chunked"}, CONTENT_LENGTH="")
    assert answer.status_code == 411
    assert answer.json()["code"] == "length_required" and "Content-Length" in answer.json()["detail"]
    page = client.post("/accounts/logout/", {}, headers={"Transfer-Encoding": "chunked"}, CONTENT_LENGTH="")
    assert page.status_code == 411 and "Content-Length" in page.content.decode()
    assert post(client, "/api/v1/runs/validate/").status_code == 400
