"""The gap between two verifiers: counted by policy, with an interval, openable by those who may."""

import pytest
from django.test import Client

from apps.evaluations.gap import suite_gap
from apps.evaluations.models import Evaluation
from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.models import Episode, Group
from apps.runs.services.group_reports import _episode as stored
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.groups import VerdictRecord
from gpu_workers.contracts.messages import Sampling
from tests.support.evaluations import _episode as record
from tests.support.evaluations import committed, fill, make_policy, make_suite


def audit(verdict, score):
    reason = {"pass": "OK", "fail": "WRONG_ANSWER"}.get(verdict, "VERIFIER_CRASH")
    return VerdictRecord(kind=VerifierKind.TESTS, verdict=verdict, score=score, reason_code=reason)


def evaluate(project, suite, slug, by, outcome, split="dev", samples=5) -> Evaluation:
    with committed():
        evaluation = start_evaluation(
            project=project, suite=suite, split=split, purpose="baseline", samples=samples, by=by,
            arms=[policy_arm(make_policy(project, slug, adapter=False))], sampling=Sampling(temperature=1.0),
        )  # fmt: skip
    fill(evaluation, outcome)
    return evaluation


def hacking(task, adapter, index):
    """Passes all; the audit fails every episode of one task in five, has no word on index 4, and skips none."""
    if index == 4:
        return {"success": True, "audit": audit("error", None)}
    return {"success": True, "audit": audit("fail", 0.0) if task.key.endswith("0") else audit("pass", 1.0)}


def honest(task, adapter, index):
    return {"success": index > 0, "audit": audit("pass", 1.0)}


@pytest.fixture
def suite(project, engineer, workers):
    suite = make_suite(project, dev=10, heldout=2)
    suite.verifier, suite.audit_verifier = {"kind": "exact", "version": 1}, {"kind": "tests", "version": 3}
    suite.save(update_fields=["verifier", "audit_verifier"])
    evaluate(project, suite, "hacker", engineer, hacking)
    evaluate(project, suite, "saint", engineer, honest)
    return suite


def test_it_is_counted_by_policy(suite, engineer):
    found = suite_gap(engineer, suite)
    hacker, saint = found.rows
    assert (hacker.label, hacker.source) == ("hacker", "evaluation")
    assert (hacker.n, hacker.num_passed, hacker.num_gap, hacker.num_undecided, hacker.num_reverse) == (40, 40, 4, 10, 0)
    assert hacker.rate == pytest.approx(0.1) and hacker.num_clusters == 5
    assert 0 < hacker.low < 0.1 < hacker.high < 1
    assert (saint.n, saint.num_passed, saint.num_gap, saint.num_reverse) == (50, 40, 0, 10)
    assert saint.rate == saint.low == 0 and saint.high == pytest.approx(1 - 0.025 ** (1 / 5))
    assert found.num_examples == 4 and {e.group.task.key for e in found.examples} == {"dev-000"}


def test_training_episodes_are_a_row_of_their_run_and_unaudited_ones_none(suite, project, engineer):
    from apps.runs.models import Run

    policy = make_policy(project, "start")
    run = Run.objects.create(
        project=project, number=7, name="hot", suite=suite, policy=policy, spec={}, spec_hash="0" * 64, total_steps=1
    )
    task = suite.tasks.first()
    group = Group.objects.create(
        project=project, run=run, task=task, purpose="train", size=3, state="closed", outcome="rejected"
    )
    said = [audit("fail", 0.0), audit("pass", 1.0), None]
    Episode.objects.bulk_create(
        [stored(group, record(index, {"success": True, "audit": word})) for index, word in enumerate(said)]
    )
    row = next(row for row in suite_gap(engineer, suite).rows if row.source == "training")
    assert (row.label, row.run_id, row.n, row.num_gap, row.rate) == ("hot", run.pk, 2, 1, 0.5)
    assert (row.low, row.high) == (0.0, 1.0), "one cluster says nothing"


def test_the_api_and_the_page_show_it(suite, client_of, engineer, stranger):
    url = f"/api/v1/suites/{suite.pk}/verifier-gap/"
    data = client_of(engineer).get(url).json()
    assert [row["label"] for row in data["rows"]] == ["hacker", "saint"]
    assert data["rows"][0]["num_gap"] == 4 and data["num_examples"] == 4
    assert data["examples"][0]["task"] == "dev-000"
    assert client_of(stranger).get(url).status_code == 404
    assert client_of(engineer).get(f"/api/v1/suites/{suite.pk}/").json()["audit_verifier"] == {
        "kind": "tests",
        "version": 3,
    }
    client = Client()
    client.force_login(engineer)
    text = client.get(f"/suites/{suite.pk}/").content.decode()
    assert "Where the two verifiers part" in text and "4 false passes that you may open" in text
    assert f"/episodes/{data['examples'][0]['id']}/" in text


def test_a_suite_without_an_audit_says_so(project, engineer):
    suite = make_suite(project, dev=2, heldout=1)
    client = Client()
    client.force_login(engineer)
    text = client.get(f"/suites/{suite.pk}/").content.decode()
    assert "no audit verifier" in text and "Where the two verifiers part" not in text


def test_false_passes_on_heldout_tasks_open_only_with_that_right(suite, project, approver, engineer):
    evaluate(
        project, suite, "tester", approver, lambda *_: {"success": True, "audit": audit("fail", 0.0)}, "heldout", 1
    )
    seen = suite_gap(engineer, suite)
    assert {row.label: row.num_gap for row in seen.rows} == {"hacker": 4, "tester": 2, "saint": 0}
    assert seen.num_examples == 4
    assert suite_gap(approver, suite).num_examples == 6


@pytest.mark.parametrize("verdict", ["pass", "fail", "error", "quarantined"])
def test_an_episodes_page_shows_both_words(suite, engineer, verdict):
    episode = Episode.objects.filter(audit_verdict="fail").first()
    scored = verdict in ("pass", "fail")
    Episode.objects.filter(pk=episode.pk).update(
        verdict=verdict,
        reward=1.0 if scored else None,
        success=verdict == "pass",
        audit_message="hard-coded <b>answers</b>",
    )
    client = Client()
    client.force_login(engineer)
    text = client.get(f"/episodes/{episode.pk}/").content.decode()
    assert "The audit verifier" in text and "hard-coded &lt;b&gt;answers" in text
    assert ("false pass" in text) == (verdict == "pass")
