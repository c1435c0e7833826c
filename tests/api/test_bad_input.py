"""Requests meant to break something: each is refused as a problem, or stored and shown as the plain text it is."""

import csv
import io
import json
from uuid import uuid4

import pytest
from django.test import Client

from apps.accounts.models import Membership, Project, Role, User
from apps.accounts.services import issue_token, rename_project
from apps.runs.models import Run
from apps.runs.services import submit_run
from tests.support.worlds import World, make_world, run_spec

pytestmark = pytest.mark.django_db
SQL = "'; DROP TABLE runs_run; --"
HTML = "<script>alert(1)</script>"


@pytest.fixture
def world(settings, tmp_path, monkeypatch) -> World:
    settings.OBJECT_STORE_URL = f"file://{tmp_path}"
    monkeypatch.setattr("apps.runs.messaging.request_advance", lambda *_, **__: None)
    return make_world()


def api(user: User, **scope: object):
    """A client with a token of the user's."""
    secret = issue_token(user=user, name="t", by=None, **scope).secret
    return Client(headers={"Authorization": f"Bearer {secret}"})


def send(client: Client, url: str, body: object, **headers: str):
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    return client.post(url, data, content_type="application/json", headers=headers)


def refused(response, status: int, code: str) -> None:
    assert response.status_code == status, response.content[:500]
    assert response["Content-Type"] == "application/problem+json" and response.json()["code"] == code


def test_a_token_of_another_project_opens_nothing(world):
    other = Project.objects.create(slug="other", title="Other")
    Membership.objects.create(user=world.engineer, project=other, role=Role.ENGINEER)
    run = submit_run(project=world.project, spec=run_spec(), by=world.engineer)
    client = api(world.engineer, project=other)
    refused(client.get(f"/api/v1/runs/{run.pk}/"), 404, "not_found")
    refused(client.get("/api/v1/projects/lab/"), 404, "not_found")
    refused(send(client, "/api/v1/runs/", {"project": "lab", "spec": run_spec()}), 404, "not_found")
    assert client.get("/api/v1/runs/").json()["results"] == []
    assert [row["slug"] for row in client.get("/api/v1/me/").json()["projects"]] == ["other"]


def test_guessed_ids_tell_nothing(world):
    outsider = User.objects.create_user("outsider")
    run = submit_run(project=world.project, spec=run_spec(), by=world.engineer)
    client = api(outsider)
    there, invented = (client.get(f"/api/v1/runs/{pk}/") for pk in (run.pk, uuid4()))
    assert there.status_code == invented.status_code == 404 and there.content == invented.content
    for kind in ("gates", "evaluations", "episodes"):
        assert len({client.get(f"/api/v1/{kind}/?run={pk}").content for pk in (run.pk, uuid4())}) == 1


def test_a_role_removed_in_mid_session_ends_with_the_next_request(world):
    client = Client()
    client.force_login(world.engineer)
    run = submit_run(project=world.project, spec=run_spec(), by=world.engineer)
    assert client.get(f"/runs/{run.pk}/").status_code == 200
    Membership.objects.filter(user=world.engineer).update(role=Role.VIEWER)
    refused(send(client, f"/api/v1/runs/{run.pk}/cancel/", {}), 403, "forbidden")
    Membership.objects.filter(user=world.engineer).delete()
    assert client.get(f"/runs/{run.pk}/").status_code == 404


def test_a_replayed_key_with_another_body_or_reach_is_refused(world):
    client = api(world.engineer)
    body = {"project": "lab", "spec": run_spec()}
    first, again = (send(client, "/api/v1/runs/", body, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert first.json() == again.json() and again["Idempotent-Replay"] == "true" and Run.objects.count() == 1
    changed = {"project": "lab", "spec": run_spec(steps=9)}
    refused(send(client, "/api/v1/runs/", changed, **{"Idempotency-Key": "k"}), 422, "idempotency_key_reused")
    again = send(api(world.engineer), "/api/v1/runs/", body, **{"Idempotency-Key": "k"})
    assert again["Idempotent-Replay"] == "true", "a renewed token of the same reach is as good"
    narrow = api(world.engineer, scopes=["run:read"])
    refused(send(narrow, "/api/v1/runs/", body, **{"Idempotency-Key": "k"}), 422, "idempotency_key_reused")
    for key in ("", "a b", "k" * 201, "ü"):
        refused(send(client, "/api/v1/runs/", body, **{"Idempotency-Key": key}), 400, "idempotency_key_invalid")


@pytest.mark.parametrize("depth", [102, 900, 5000, 200_000])
def test_deep_json_is_refused(world, depth):
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        refused(send(api(world.engineer), "/api/v1/runs/", text), 400, "malformed_body")


@pytest.mark.parametrize("url", ["/api/v1/runs/", "/api/v1/policies/", "/api/v1/tokens/", "/api/v1/suites/"])
def test_an_oversize_body_is_refused_before_it_is_read(world, url):
    size = 40_000_000 if url.endswith("suites/") else 3_000_000
    answer = send(api(world.engineer), url, b'{"a": "' + b"x" * size + b'"}')
    assert answer.status_code == 413 and answer.json()["code"] in ("body_too_large", "too_large")


@pytest.mark.parametrize(
    "url",
    [
        "policies", "runs", "channels", "gate-policies", "gates", "evaluations", "tokens", "webhooks", "suites",
        "suites/import", "projects", "projects/lab/members", "projects/lab/invitations", "invitations/accept",
        "reviews/next",
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_everywhere_beside_all_that_is_wrong(world, url):
    answer = send(api(world.users[Role.ADMIN]), f"/api/v1/{url}/", {"colour": "red"})
    assert answer.status_code == 400, answer.content
    paths = [error["path"] for error in answer.json()["errors"]]
    assert "colour" in paths
    assert len(paths) == len(set(paths)) and (len(paths) > 1 or url == "reviews/next")


def test_every_wrong_field_of_a_spec_is_named_at_once(world):
    spec = run_spec(colour=1, lora__rank=0, rollout__group_size="x", rollout__wings=2, seed=-1)
    answer = send(api(world.engineer), "/api/v1/runs/", {"project": "lab", "spec": spec})
    refused(answer, 422, "invalid_run_spec")
    assert sorted(error["path"] for error in answer.json()["errors"]) == [
        "colour", "lora.rank", "rollout.group_size", "rollout.wings", "seed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        "?colour=red", "?state=flying", "?state=", "?project=lab&project=lab", "?page_size=0", "?page_size=x",
        "?page_size=201", "?ordering=spec", "?ordering=", "?cursor=x", "?fields=spec,secret", "?fields=",
    ],
)  # fmt: skip
def test_odd_filters_are_refused(world, query):
    submit_run(project=world.project, spec=run_spec(), by=world.engineer)
    answer = api(world.engineer).get(f"/api/v1/runs/{query}")
    assert answer.status_code in (400, 404), answer.content
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    "url",
    [
        "/api/v1/runs/{run}/events/?after=99999999999999999999", "/api/v1/runs/{run}/events/?after=-1",
        "/api/v1/runs/{run}/events/?after=" + "9" * 5000, "/api/v1/episodes/?success=maybe",
        "/api/v1/runs/{run}/groups/?policy_version=99999999999999999999",
        "/api/v1/runs/{run}/groups/?step=1e400", "/api/v1/runs/{run}/groups/?step=1.5",
        "/api/v1/runs/?number=1.5", "/api/v1/runs/{run}/groups/?step=NaN",
        "/api/v1/runs/{run}/episodes.jsonl?transcripts=perhaps", "/api/v1/episodes/?run=1",
        "/api/v1/runs/{run}/live/?cursor=x",
    ],
)  # fmt: skip
def test_numbers_and_truths_that_are_none_are_refused_or_match_nothing(world, url):
    run = submit_run(project=world.project, spec=run_spec(), by=world.engineer)
    answer = api(world.engineer).get(url.format(run=run.pk))
    assert answer.status_code == 400 or (answer.status_code == 200 and answer.json()["results"] == []), answer.content


@pytest.mark.parametrize("text", [SQL, HTML, "a\r\nSet-Cookie: x=1", "=cmd|' /C calc'!A0", "{{ 7*7 }}", "‮evil"])
def test_hostile_text_is_stored_and_shown_as_text(world, text):
    client = api(world.engineer)
    made = send(client, "/api/v1/runs/", {"project": "lab", "spec": run_spec(name=text)})
    assert made.status_code == 202 and made.json()["name"] == text
    page = Client()
    page.force_login(world.engineer)
    for url in ("/runs/", f"/runs/{made.json()['id']}/"):
        shown = page.get(url)
        assert shown.status_code == 200 and "x" not in shown.cookies
        assert HTML not in shown.content.decode()
    found = client.get("/api/v1/runs/", {"project": text})
    assert found.status_code == 200 and found.json()["results"] == []
    assert Run.objects.count() == 1


@pytest.mark.parametrize("part", ["%0A", "%0D%0Ax", "%FF", "%C0%80", "..%2F..%2Fetc%2Fpasswd", "%20", "a" * 5000])
def test_odd_addresses_are_problems(world, part):
    client = api(world.engineer)
    for url in (f"/api/v1/projects/{part}/", f"/api/v1/projects/lab/members/{part}/", f"/api/v1/runs/?project={part}"):
        answer = client.get(url)
        assert answer.status_code in (200, 400, 404), url
        assert answer["Content-Type"] in ("application/json", "application/problem+json")


def test_headers_cannot_be_smuggled_into_answers(world):
    client = api(world.engineer)
    for name in ("Idempotency-Key", "If-Match", "If-None-Match", "X-Forwarded-Host", "Origin"):
        answer = client.get("/api/v1/me/", headers={name: "x\r\nSet-Cookie: stolen=1"})
        assert "stolen" not in str(answer.headers) and not answer.cookies


def test_formulas_do_not_run_in_an_exported_table(world):
    admin = world.users[Role.ADMIN]
    for title in ("=1+1", "+1", "-1", "@x", "\t=1", "\r=1"):
        rename_project(project=world.project, title=f"{title} {uuid4().hex}", by=admin)
    answer = api(admin).get("/api/v1/audit/export/?project=lab&as=csv")
    cells = [cell for row in csv.reader(io.StringIO(b"".join(answer.streaming_content).decode())) for cell in row]
    assert cells and not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]


def test_two_people_who_change_the_same_thing_do_not_overwrite_each_other(world):
    admin = world.users[Role.ADMIN]
    client = api(admin)
    seen = client.get("/api/v1/projects/lab/")["ETag"]

    def rename(title: str, tag: str):
        return client.patch(
            "/api/v1/projects/lab/", {"title": title}, content_type="application/json", headers={"If-Match": tag}
        )

    assert rename("First", seen).status_code == 200
    refused(rename("Second", seen), 412, "precondition_failed")
    assert Project.objects.get(slug="lab").title == "First"
    assert rename("Second", client.get("/api/v1/projects/lab/")["ETag"]).json()["title"] == "Second"
    member = client.get("/api/v1/projects/lab/members/lab-viewer/")["ETag"]
    url = "/api/v1/projects/lab/members/lab-viewer/"
    for status in (200, 412):
        answer = client.put(url, {"role": "engineer"}, content_type="application/json", headers={"If-Match": member})
        assert answer.status_code == status


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer a b", "Bearer ", "Basic eA==", "bearer rt_", "Bearer \x00", "Bearer " + "x" * 5000]
)
def test_odd_credentials_are_none(world, header):
    answer = Client().get("/api/v1/me/", headers={"Authorization": header})
    assert answer.status_code == 401 and answer["WWW-Authenticate"].startswith("Bearer")


def test_lists_come_in_the_order_asked_for_page_by_page(world):
    client = api(world.engineer)
    for name in ("c", "a", "b"):
        submit_run(project=world.project, spec=run_spec(name=name), by=world.engineer)

    def names(url: str) -> list[str]:
        found: list[str] = []
        while url:
            page = client.get(url).json()
            found += [row["name"] for row in page["results"]]
            url = (page["next"] or "").removeprefix("http://testserver")
        return found

    assert names("/api/v1/runs/?page_size=1") == ["b", "a", "c"]
    assert names("/api/v1/runs/?page_size=2&ordering=name") == ["a", "b", "c"]
    assert names("/api/v1/runs/?page_size=1&ordering=-number&fields=name,number") == ["b", "a", "c"]
