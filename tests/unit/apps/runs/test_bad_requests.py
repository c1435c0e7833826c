"""Requests that no run can be made of: each a problem that says what is wrong."""

import json

import pytest

from apps.audit.models import AuditEvent
from apps.runs.models import Run
from tests.support.evaluations import Workers, make_policy, make_suite

pytestmark = pytest.mark.django_db
SPEC = {"suite": "sums", "policy": "plain"}


@pytest.fixture
def workers(monkeypatch) -> Workers:
    return Workers(monkeypatch)


def _post(client, body: str):
    return client.post("/api/v1/runs/", data=body, content_type="application/json")


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"lora": {"rank": 100_000}}, "lora.rank", "<= 512"),
        ({"seed": 10**22}, "seed", ""),
        ({"steps": 99_999_999_999}, "steps", "<= 1000000"),
        ({"rollout": {"max_new_tokens": 10**9}}, "rollout.max_new_tokens", "<= 1000000"),
        ({"rollout": {"group_timeout_seconds": -1}}, "rollout.group_timeout_seconds", "> 0"),
        ({"rollout": {"top_p": 0.9}}, "rollout.top_p", "must be 1 while training"),
        ({"algorithm": {"correction": "none"}}, "algorithm.correction", "use tis or icepop"),
        ({"trainer": {"update": "full"}}, "trainer.update", "name them in ROLLOUT_FULL_ENGINE_URLS"),
        ({"trainer": {"transfer": "delta"}}, "trainer.transfer", "which replaces all weights"),
    ],
)
def test_a_spec_beyond_its_bounds_is_refused_with_the_path(client_of, engineer, project, changes, path, words):
    make_suite(project, train=4, heldout=4)
    make_policy(project, "plain", adapter=False)
    body = json.dumps({"project": project.slug, "spec": SPEC | changes})
    response = _post(client_of(engineer), body)
    assert response.status_code == 422, response.content
    (error,) = response.json()["errors"]
    assert error["path"] == path
    assert words in error["message"]


@pytest.mark.parametrize(
    "body", ['{"project": "a\\u0000b"}', '{"project": "\\ud800"}', "[" * 200_000, '{"a": NaN}', "{"]
)
def test_a_body_that_cannot_be_stored_is_a_problem(client_of, engineer, body):
    response = _post(client_of(engineer), body)
    assert response.status_code == 400, response.content
    assert response["Content-Type"] == "application/problem+json" and response.json()["code"] == "malformed_body"


@pytest.mark.parametrize(
    ("address", "status", "code"),
    [
        ("/api/v1/nothing/", 404, "no_such_endpoint"),
        ("/api/v1/runs", 404, "no_such_endpoint"),
        ("/api/v1/runs/1/", 404, "no_such_endpoint"),
        ("/api/v1/runs/?state=%00", 400, "malformed_address"),
        ("/api/v1/runs/?cursor=cD0wMDAw", 400, "invalid"),
    ],
)
def test_an_address_that_is_none_is_a_problem(client_of, engineer, address, status, code):
    response = client_of(engineer).get(address)
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json" and response.json()["code"] == code


def test_a_body_too_large_is_a_problem(client_of, engineer):
    response = _post(client_of(engineer), json.dumps({"project": "x" * 3_000_000}))
    assert response.status_code == 413 and response.json()["code"] == "body_too_large"


def test_a_page_with_nul_in_its_address_is_refused(client, db):
    assert client.get("/runs/?state=%00").status_code == 400


def test_a_dry_run_names_everything_and_stores_nothing(client_of, engineer, viewer, project, workers):
    make_suite(project, train=4, heldout=4)
    make_policy(project, "plain", adapter=False)
    client, url = client_of(engineer), "/api/v1/runs/validate/"
    wrong = {"suite": "nothing", "policy": "nobody", "rollout": {"prompts_per_batch": 4096, "group_size": 64}}
    refused = client.post(url, {"project": project.slug, "spec": wrong})
    assert refused.status_code == 422
    paths = {error["path"] for error in refused.json()["errors"]}
    assert paths == {"suite", "policy", "rollout.prompts_per_batch"}
    submitted = client.post("/api/v1/runs/", {"project": project.slug, "spec": wrong})
    assert submitted.json()["errors"] == refused.json()["errors"]
    typed = {"suite": "nothing", "policy": "nobody", "steps": "many", "colour": 1}
    paths = {error["path"] for error in client.post(url, {"project": project.slug, "spec": typed}).json()["errors"]}
    assert paths == {"suite", "policy", "steps", "colour"}
    both = {"suite": "sums", "policy": "plain", "rollout": {"top_p": 0.9}, "algorithm": {"correction": "none"}}
    rules = {error["path"] for error in client.post(url, {"project": project.slug, "spec": both}).json()["errors"]}
    assert rules == {"rollout.top_p", "algorithm.correction"}
    num_events = AuditEvent.objects.count()
    good = {"project": project.slug, "spec": {"suite": "sums", "policy": "plain"}}
    wanted = client.post(url, good).json()
    assert (wanted["suite"], wanted["policy"], wanted["spec"]["rollout"]["group_size"] > 1) == ("sums@1", "plain", True)
    assert (Run.objects.count(), AuditEvent.objects.count()) == (0, num_events)
    assert client.post("/api/v1/runs/", good).json()["spec_hash"] == wanted["spec_hash"]
    assert client_of(viewer).post(url, good).status_code == 403


def test_runs_are_found_by_number(client_of, engineer, project, workers):
    make_suite(project, train=4, heldout=4)
    make_policy(project, "plain", adapter=False)
    client = client_of(engineer)
    for _ in range(2):
        client.post("/api/v1/runs/", {"project": project.slug, "spec": {"suite": "sums", "policy": "plain"}})
    found = client.get("/api/v1/runs/", {"number": 2}).json()["results"]
    assert [run["number"] for run in found] == [2]
    for odd in ("x", "1.5", "9" * 30):
        answer = client.get("/api/v1/runs/", {"number": odd})
        assert answer.status_code == 400 or not answer.json()["results"], odd
