"""gate: the verdict as an exit code, and decisions on what was seen."""

import json
from collections import deque

import pytest

from apps.promotions import messaging as promotion_messaging
from apps.promotions.models import Gate
from tests.support.evaluations import Workers
from tests.support.faulty_proxy import LOST, FaultyProxy
from tests.support.gates import GateWorld
from tests.support.worlds import make_world


@pytest.fixture
def world(application, monkeypatch):
    lab = make_world()
    lab.suite.slug = "others"
    lab.suite.save()
    computes: deque = deque()
    monkeypatch.setattr(promotion_messaging, "request_verdict", computes.append)
    lab.gates = GateWorld(lab.project, lab.engineer, Workers(monkeypatch), computes)
    return lab


def test_the_verdict_is_the_exit_code(ratchet, world):
    opened = json.loads(
        ratchet("gate", "open", "candidate", "--suite", "sums", "--baseline", "prompted", "--json").stdout
    )
    assert "evaluating" in ratchet("gate", "show", "last", code=2).stdout
    world.gates.finish(Gate.objects.get(pk=opened["id"]), success=0.9)
    shown = ratchet("gate", "show", "last", role="approver").stdout
    assert "✓ pass" in shown and "Held-out success" in shown and "approve, reject" in shown
    world.gates.finish(world.gates.open(), success=0.05)
    assert json.loads(ratchet("gate", "show", 2, "--wait", "--json", code=1).stdout)["verdict"] == "fail"
    world.gates.finish(world.gates.open(), success=0.31)
    ratchet("gate", "show", 3, code=2)


def test_a_decision_is_on_what_was_seen_and_not_by_the_submitter(ratchet, world, application):
    gate = world.gates.finish(world.gates.open())
    decide = ("gate", "decide", 1, "approve", "--reason", "better")
    assert "--evidence" in ratchet(*decide, "--yes", code=3, role="approver").stderr
    assert "evidence_changed" in ratchet(*decide, "--yes", "--evidence", "0" * 64, code=3, role="approver").stderr
    assert "gate:decide" in ratchet(*decide, "--yes", "--evidence", gate.evidence_digest, code=3).stderr
    ratchet(*decide, role="approver", stdin="n\n", code=130)
    proxy = FaultyProxy(application.port, [None, None, None, LOST])  # who, which, what; then the decision
    shown = ratchet(*decide, role="approver", stdin="y\n", RATCHET_URL=proxy.url).stdout
    assert proxy.num_requests == 5
    assert "Held-out success" in shown and "approve by lab-approver" in shown
    gate.refresh_from_db()
    assert (gate.decision.kind, gate.decision.reason) == ("approve", "better")
