"""What a gate could show before it is opened."""

import pytest

from apps.evaluations.gate_policies import create_gate_policy
from apps.promotions.planning import plan_gate
from tests.support.evaluations import make_suite


def test_the_plan_says_what_is_detectable_and_what_is_out_of_reach(project, client_of, viewer):
    suite, policy = make_suite(project, heldout=60), create_gate_policy(project=project, slug="default", by=None)
    plan = plan_gate(suite, policy)
    assert (plan.num_tasks, plan.num_clusters, plan.look) == (60, 30, 1)
    assert plan.effective_clusters == pytest.approx(30) and plan.alpha == pytest.approx(0.0304, abs=1e-4)
    assert 15 < plan.detectable_effect < 20
    assert plan.warnings == [
        "reward hacking: a margin of 5 points needs 69 tasks without an event, there are 60",
        "invalid tool calls: a margin of 5 points needs 69 tasks without an event, there are 60",
    ]
    assert plan_gate(suite, policy, samples=8).detectable_effect < plan.detectable_effect
    answer = client_of(viewer).get("/api/v1/gates/plan/", {"project": "demo", "suite": "sums"})
    assert answer.status_code == 200 and answer.json()["warnings"] == plan.warnings


def test_one_large_cluster_and_no_tasks_are_warned_of(project):
    policy = create_gate_policy(project=project, slug="default", by=None)
    lopsided = plan_gate(make_suite(project, slug="one", per_cluster=90, heldout=100), policy)
    assert lopsided.warnings == ["one cluster holds 90 % of the tasks: above a third the gate gives no verdict"]
    assert plan_gate(make_suite(project, slug="none", dev=3), policy).warnings == ["none@1 has no held-out tasks"]
