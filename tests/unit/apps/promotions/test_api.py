"""REST of gates: opening, reading, deciding with what was seen, overriding with two people."""

import pytest

from apps.audit.models import AuditEvent
from apps.evaluations.models import GatePolicy
from apps.promotions.models import Gate

GATES = "/api/v1/gates/"


@pytest.fixture
def body(world):
    return {
        "project": "demo",
        "candidate": "candidate",
        "suite": "sums",
        "gate_policy": "default",
        "baselines": ["prompted"],
    }


def test_opening_answers_202_once_per_key(world, body, client_of, engineer, viewer):
    client = client_of(engineer)
    first = client.post(GATES, body, headers={"Idempotency-Key": "a"})
    again = client.post(GATES, body, headers={"Idempotency-Key": "a"})
    assert first.status_code == again.status_code == 202 and first.json()["id"] == again.json()["id"]
    assert first["Location"] == f"{GATES}{first.json()['id']}/"
    assert first.json()["progress"] == {"done": 0, "total": 240}
    assert Gate.objects.count() == 1
    assert client_of(viewer).post(GATES, body).status_code == 403


@pytest.mark.parametrize(
    "change, path",
    [
        ({"candidate": "nobody"}, "policy"),
        ({"channel": "nowhere"}, "channel"),
        ({"suite": "nothing"}, "suite"),
        ({"gate_policy": "strict"}, "gate_policy"),
        ({"samples": 0}, "samples"),
        ({"candidate": "incumbent"}, "candidate"),
        ({"run": "01890000-0000-7000-8000-000000000000"}, "run"),
    ],
)
def test_a_wrong_field_is_named(world, body, client_of, engineer, change, path):
    answer = client_of(engineer).post(GATES, {**body, **change})
    assert answer.status_code == 400, answer.content
    assert [error["path"] for error in answer.json()["errors"]] == [path]
    assert answer["Content-Type"] == "application/problem+json"


def test_a_default_gate_policy_is_made_where_there_is_none(world, body, client_of, engineer):
    GatePolicy.objects.all().delete()
    assert client_of(engineer).post(GATES, body).status_code == 202
    assert GatePolicy.objects.get().metrics["tamper"] == {"required": True, "margin": 0.05}


def test_deciding_needs_what_was_seen(world, client_of, approver, engineer):
    gate = world.finish(world.open())
    client, url = client_of(approver), f"{GATES}{gate.pk}/"
    page = client.get(url)
    assert page["ETag"] == f'"{gate.evidence_digest}"'
    assert page.json()["allowed"]["approve"] and page.json()["report"]["tasks"]["better"]
    assert AuditEvent.objects.filter(tag="user:heldout:read", actor_name="pam").exists()
    assert "tasks" not in client_of(engineer).get(url).json()["report"]
    decision = f"{url}decision/"
    assert client.post(decision, {"kind": "approve"}).status_code == 428
    stale = client.post(decision, {"kind": "approve"}, headers={"If-Match": '"stale"'})
    assert (stale.status_code, stale.json()["code"]) == (409, "evidence_changed")
    refused = client_of(engineer).post(decision, {"kind": "approve", "evidence_digest": gate.evidence_digest})
    assert refused.status_code == 403
    done = client.post(decision, {"kind": "approve"}, headers={"If-Match": page["ETag"]})
    assert done.status_code == 200 and done.json()["decision"]["by"] == "pam"
    assert done.json()["allowed"]["rollback"] and done.json()["regression_result"]["status"] == "running"


def test_an_override_takes_two(world, client_of, approver, second_approver):
    gate = world.finish(world.open(), success=0.31)
    seen = {"evidence_digest": gate.evidence_digest}
    first, second = client_of(approver), client_of(second_approver)
    asked = first.post(f"{GATES}{gate.pk}/decision/", {"kind": "override", "reason": "Needed for the trial.", **seen})
    assert asked.status_code == 200 and asked.json()["state"] == "waiting"
    assert first.post(f"{GATES}{gate.pk}/confirm/", seen).json()["code"] == "second_approver"
    confirmed = second.post(f"{GATES}{gate.pk}/confirm/", seen)
    assert confirmed.json()["state"] == "decided" and confirmed.json()["decision"]["second_by"] == "paul"


def test_evidence_says_whether_it_still_holds(world, client_of, approver, stranger):
    gate = world.finish(world.open())
    evidence = client_of(approver).get(f"{GATES}{gate.pk}/evidence/").json()
    assert evidence["holds"] and evidence["evidence_digest"] == gate.evidence_digest
    gate.evaluation.items.first().group.episodes.update(success=True, verdict="pass", reward=1.0, num_turns=9)
    assert client_of(approver).get(f"{GATES}{gate.pk}/evidence/").json()["holds"] is False
    assert client_of(stranger).get(f"{GATES}{gate.pk}/evidence/").status_code == 404
    listed = client_of(approver).get(GATES, {"project": "demo", "state": "waiting"}).json()["results"]
    assert [row["headline"] for row in listed] == [gate.headline]
    assert client_of(stranger).get(GATES).json()["results"] == []
