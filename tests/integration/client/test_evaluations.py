"""evaluations: shown with their comparison, and asked for again; submit --dry-run."""

import json

import pytest

from apps.evaluations.models import Evaluation
from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.models import Run
from tests.support.evaluations import Workers, fill, make_policy, make_suite
from tests.support.worlds import World


@pytest.fixture
def measured(world: World, monkeypatch) -> Evaluation:
    Workers(monkeypatch)
    suite = make_suite(world.project, slug="measured", dev=8, heldout=2)
    arms = [policy_arm(make_policy(world.project, slug)) for slug in ("old", "new")]
    evaluation = start_evaluation(
        project=world.project, suite=suite, split="dev", purpose="baseline", arms=arms, by=world.engineer
    )
    names = {arm.engine_name: arm.label for arm in evaluation.arms.all()}
    fill(evaluation, lambda task, adapter, index: {"success": names[adapter] == "new" or task.key.endswith("1")})
    return evaluation


def test_it_is_listed_shown_and_compared(ratchet, measured):
    assert str(measured.pk) in ratchet("evaluations", "list", "--suite", "measured").stdout
    shown = json.loads(ratchet("evaluation", "show", "last", "--json").stdout)
    (arm,) = shown["comparison"]["arms"]
    assert (shown["comparison"]["base"], arm["label"], arm["num_worse"]) == ("old", "new", 0)
    text = ratchet("evaluations", "show", measured.pk).stdout
    assert f"new against old: {100 * arm['difference']:+.1f} points" in text and "worse on 0 of 8 tasks" in text
    assert "old against new" in ratchet("evaluations", "show", "last", "--base", "new").stdout


def test_it_is_asked_for_again_and_cancelled(ratchet, measured):
    again = json.loads(ratchet("evaluations", "retry", "last", "--json").stdout)
    assert again["id"] != str(measured.pk) and again["plan_hash"] == measured.plan_hash
    assert json.loads(ratchet("evaluations", "retry", measured.pk, "--json").stdout)["id"] == again["id"]
    assert json.loads(ratchet("evaluations", "cancel", "last", "--json").stdout)["state"] == "cancelled"
    assert "no evaluation" in ratchet("evaluations", "show", "first", code=3).stderr


def test_a_dry_run_stores_nothing_and_names_lines(ratchet, world: World):
    spec = "suite: sums\npolicy: base\nsteps: 2\n"
    wanted = json.loads(ratchet("submit", "-", "--dry-run", "--json", stdin=spec).stdout)
    assert (wanted["suite"], wanted["spec"]["steps"]) == ("sums@1", 2)
    said = dict(line.split("  ", 1) for line in ratchet("submit", "-", "--dry-run", stdin=spec).stdout.splitlines())
    assert said["steps"].strip().startswith("2, each on ") and said["suite"].strip() == "sums@1"
    refused = ratchet("submit", "-", "--dry-run", stdin="suite: none\npolicy: nobody\nsteps: x\n", code=3).stderr
    assert all(f"standard input:{line}" in refused for line in (1, 2, 3)), refused
    assert not Run.objects.exists()
