"""Policies and channels over REST."""

import json
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from apps.policies.models import BaseModel, MoveKind
from apps.policies.services import move_channel, set_channel


@pytest.fixture
def channel(project, policies):
    channel = set_channel(project=project, name="production", policy=policies[1], by=None)
    move_channel(channel=channel, to_policy=policies[2], kind=MoveKind.PROMOTION, by=None, reason="better")
    channel.refresh_from_db()
    return channel


def test_a_prompt_only_policy_is_made_by_engineers(policies, engineer, viewer, stranger, client_of):
    body = {"project": "demo", "slug": "four-shot", "base_model": "tiny", "num_shots": 4}
    for user, status in ((viewer, 403), (stranger, 404)):
        assert client_of(user).post("/api/v1/policies/", body).status_code == status
    client = client_of(engineer)
    answer = client.post("/api/v1/policies/", body)
    assert (answer.status_code, answer.json()["num_shots"], answer.json()["kind"]) == (201, 4, "prompt")
    assert client.get(answer.headers["Location"]).json()["slug"] == "four-shot"
    unknown = client.post("/api/v1/policies/", {**body, "slug": "x", "base_model": "huge"})
    assert (unknown.status_code, unknown.json()["errors"][0]["path"]) == (400, "base_model")
    trained = client.post("/api/v1/policies/", {**body, "slug": "y", "kind": "reinforced"})
    assert trained.json()["errors"][0]["path"] == "kind"


def test_lists_and_lineage_are_filtered(policies, engineer, stranger, client_of):
    client = client_of(engineer)
    listed = client.get("/api/v1/policies/?project=demo&kind=supervised").json()["results"]
    assert [row["slug"] for row in listed] == ["supervised"]
    detail = client.get(f"/api/v1/policies/{policies[1].pk}/").json()
    assert [row["slug"] for row in detail["ancestors"] + detail["children"]] == ["prompted", "reinforced"]
    assert client_of(stranger).get("/api/v1/policies/").json()["results"] == []
    assert client_of(stranger).get(f"/api/v1/policies/{policies[1].pk}/").status_code == 404
    assert client.get(f"/api/v1/policies/{uuid4()}/").status_code == 404
    assert [row["slug"] for row in client.get("/api/v1/base-models/").json()["results"]] == ["tiny"]


def test_a_channel_is_set_up_by_approvers(policies, approver, engineer, client_of):
    body = {"project": "demo", "name": "canary", "policy": "supervised"}
    assert client_of(engineer).post("/api/v1/channels/", body).status_code == 403
    client = client_of(approver)
    answer = client.post("/api/v1/channels/", body)
    assert (answer.status_code, answer.headers["Location"]) == (201, "/api/v1/channels/demo/canary/")
    assert client.post("/api/v1/channels/", {**body, "policy": "none"}).json()["errors"][0]["path"] == "policy"
    assert client.post("/api/v1/channels/", {**body, "policy": "reinforced"}).status_code == 409


def test_rollback_shows_the_way_and_takes_it_once(channel, engineer, viewer, stranger, client_of):
    url = "/api/v1/channels/demo/production/"
    client = client_of(engineer)
    seen = client.get(url)
    assert (seen.json()["policy"]["slug"], seen.json()["rollback_to"]["slug"]) == ("reinforced", "supervised")
    assert seen.headers["ETag"] == '"2"'
    assert client_of(stranger).get(url).status_code == 404
    assert client_of(viewer).post(f"{url}rollback/", {"reason": "x"}).status_code == 403
    assert client_of(stranger).post(f"{url}rollback/", {"reason": "x"}).status_code == 404
    assert client.post(f"{url}rollback/", {}).json()["errors"][0]["path"] == "reason"
    assert client.post(f"{url}rollback/", {"reason": "x"}, headers={"If-Match": '"1"'}).status_code == 412
    assert client.post(f"{url}rollback/", {"reason": "x"}, headers={"If-Match": "soon"}).status_code == 400
    key = {"Idempotency-Key": "back", "If-Match": seen.headers["ETag"]}
    first = client.post(f"{url}rollback/", {"reason": "worse in use"}, headers=key)
    assert (first.status_code, first.json()["policy"]["slug"], first.json()["epoch"]) == (200, "supervised", 3)
    assert [move["kind"] for move in first.json()["moves"]] == ["rollback", "promotion", "initial"]
    assert client.post(f"{url}rollback/", {"reason": "worse in use"}, headers=key).json() == first.json()
    assert client.post(f"{url}rollback/", {"reason": "more"}).json()["code"] == "nothing_before"


def test_a_model_is_registered_from_its_folder(db, settings, tmp_path):
    settings.RATCHET_HOME = tmp_path
    with pytest.raises(CommandError, match="--context-length"):
        call_command("register_base_model", "mini")
    folder = tmp_path / "models" / "mini"
    folder.mkdir(parents=True)
    description = {"name": "mini", "fingerprint": "f" * 64, "context_length": 4096, "dtype": "bfloat16", "eos_ids": [2]}
    (folder / "ratchet_model.json").write_text(json.dumps(description))
    out = StringIO()
    for _ in range(2):
        call_command("register_base_model", "mini", "--title", "Mini", "--licence", "Apache-2.0", stdout=out)
    model = BaseModel.objects.get()
    assert (model.fingerprint, model.context_length, model.licence) == ("f" * 64, 4096, "Apache-2.0")
    assert "mini: Mini, 4096 tokens of context" in out.getvalue()
    with pytest.raises(CommandError, match="holds no model 'maxi'; it holds mini"):
        call_command("register_base_model", "maxi")
