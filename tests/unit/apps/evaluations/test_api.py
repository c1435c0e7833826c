"""REST of evaluations and gate policies."""

import pytest

from apps.audit.models import AuditEvent
from apps.evaluations.models import Evaluation
from apps.tasks.models import Suite
from tests.support.evaluations import fill, make_policy, make_suite

URL = "/api/v1/evaluations/"


@pytest.fixture
def body(project, workers):
    make_suite(project, dev=4, heldout=6)
    make_policy(project, "prompted", adapter=False)
    make_policy(project, "reinforced")
    return {"project": "demo", "suite": "sums", "split": "heldout", "policies": ["prompted"], "samples": 1}


def test_a_baseline_is_started_once_and_read(body, client_of, engineer, approver, stranger):
    client = client_of(engineer)
    first = client.post(URL, body, headers={"Idempotency-Key": "k"})
    assert first.status_code == 202, first.content
    assert client.post(URL, body, headers={"Idempotency-Key": "k"}).json()["id"] == first.json()["id"]
    assert first.json()["progress"] == {"done": 0, "total": 6} and first.json()["sampling"]["temperature"] == 0
    url = first["Location"]
    evaluation = Evaluation.objects.get()
    fill(evaluation, lambda task, adapter, index: {"success": task.key.endswith("1")})
    assert client.get(url).json()["state"] == "finished"
    results = client.get(f"{url}results/").json()
    assert results["tasks"] is None
    arm = results["arms"][0]
    assert arm["success"] == pytest.approx(1 / 6) and arm["low"] < 1 / 6 < arm["high"] and arm["n"] == 6
    assert len(client_of(approver).get(f"{url}results/").json()["tasks"]) == 6
    assert client_of(stranger).get(url).status_code == 404
    assert client.post(f"{url}cancel/").json()["code"] == "evaluation_over"


@pytest.mark.parametrize(
    "change, status, path",
    [
        ({"policies": ["reinforced"]}, 403, "split"),
        ({"policies": []}, 400, "policies"),
        ({"policies": ["nobody"]}, 400, "policy"),
        ({"max_tasks": 10**19}, 400, "max_tasks"),
        ({"split": "train"}, 409, "split"),
        ({"purpose": "gate"}, 400, "purpose"),
        ({"sampling": {"temperature": -1}}, 400, "sampling.temperature"),
    ],
)
def test_what_cannot_run_is_refused_by_name(body, client_of, engineer, change, status, path):
    answer = client_of(engineer).post(URL, {**body, **change})
    assert answer.status_code == status, answer.content
    assert path in [error["path"] for error in answer.json()["errors"]]
    assert not Evaluation.objects.exists()


def test_gate_policies_are_versioned_and_checked(project, client_of, approver, engineer):
    url, body = "/api/v1/gate-policies/", {"project": "demo", "slug": "demo", "min_effect": 0.01}
    client = client_of(approver)
    first = client.post(url, body).json()
    assert first["version"] == 1 and first["metrics"]["latency_p95"]["required"] is True
    assert client.post(url, body).json()["id"] == first["id"]
    assert client.post(url, {**body, "alpha": 0.1}).json()["version"] == 2
    assert client_of(engineer).post(url, body).status_code == 403
    for tiny in (0, 1e-320, -0.01):
        assert client.post(url, {**body, "alpha": tiny}).json()["errors"][0]["path"] == "alpha"
    wrong = {
        **body,
        "alpha": 0.7,
        "metrics": {"speed": {}, "tokens": {"margin": 0.5, "limit": 1}, "tamper": {"margin": "x"}},
    }
    answer = client.post(url, wrong)
    paths = {error["path"] for error in answer.json()["errors"]}
    assert paths == {"alpha", "metrics.speed", "metrics.tokens.margin", "metrics.tokens.limit", "metrics.tamper.margin"}


def test_the_ledger_of_a_suite(body, client_of, engineer):
    suite_id = Suite.objects.get().pk
    ledger = client_of(engineer).get(f"/api/v1/suites/{suite_id}/heldout-ledger/").json()
    assert ledger["looks"] == [] and ledger["left"] == 0.05 and ledger["next_alpha"] == pytest.approx(0.0304, abs=1e-4)


def test_a_retry_is_the_same_plan_again_and_one_while_it_is_under_way(body, client_of, engineer, viewer, project):
    client = client_of(engineer)
    url = client.post(URL, body | {"split": "dev", "policies": ["prompted", "reinforced"], "max_tasks": 3})["Location"]
    assert client.post(f"{url}retry/").json()["code"] == "evaluation_not_final"
    old = Evaluation.objects.get()
    client.post(f"{url}cancel/")
    assert client_of(viewer).post(f"{url}retry/").status_code == 403
    first = client.post(f"{url}retry/")
    assert first.status_code == 202 and first["Location"] != url, first.content
    assert client.post(f"{url}retry/").json()["id"] == first.json()["id"]
    again = Evaluation.objects.get(pk=first.json()["id"])
    assert (again.plan_hash, again.state, again.items.count()) == (old.plan_hash, "queued", 6)
    assert AuditEvent.objects.latest("id").after["retry_of"] == str(old.pk)


def test_what_a_gate_asked_is_not_retried_or_compared(body, client_of, engineer, workers):
    client = client_of(engineer)
    url = client.post(URL, body)["Location"]
    evaluation = Evaluation.objects.get()
    fill(evaluation, lambda task, adapter, index: {"success": True})
    Evaluation.objects.update(purpose="gate")
    assert client.post(f"{url}retry/").json()["code"] == "evaluation_owned"
    assert client.get(f"{url}comparison/").json()["code"] == "evaluation_owned"


def test_arms_are_compared_task_by_task(body, client_of, engineer, stranger):
    client = client_of(engineer)
    url = client.post(URL, body | {"split": "dev", "policies": ["prompted", "reinforced"]})["Location"]
    fill(Evaluation.objects.get(), lambda task, adapter, index: {"success": bool(adapter) or task.key.endswith("1")})
    found = client.get(f"{url}comparison/").json()
    assert (found["base"], [arm["label"] for arm in found["arms"]]) == ("prompted", ["reinforced"])
    arm, results = found["arms"][0], client.get(f"{url}results/").json()
    solved = [row["success"] for row in results["arms"]]
    assert arm["difference"] == pytest.approx(solved[1] - solved[0]) and arm["difference"] > 0
    assert (arm["num_better"], arm["num_worse"], arm["num_tasks"]) == (3, 0, 4)
    assert arm["p_sign"] == pytest.approx(2 * 0.5**3)
    turned = client.get(f"{url}comparison/", {"base": "reinforced"}).json()["arms"][0]
    assert turned["difference"] == pytest.approx(-arm["difference"]) and turned["num_worse"] == 3
    refused = client.get(f"{url}comparison/", {"base": "nobody"})
    assert refused.status_code == 400 and refused.json()["errors"][0]["path"] == "base"
    assert client_of(stranger).get(f"{url}comparison/").status_code == 404
