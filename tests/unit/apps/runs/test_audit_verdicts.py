"""What is stored of the audit verifier's word, and of verdicts that are none."""

import msgspec
import pytest
from django.db import IntegrityError, transaction

from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs import messaging
from apps.runs.models import Episode, Run
from apps.runs.services.groups import create_group, dispatch_group
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.groups import VerdictRecord
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.runspec import parse_run_spec, spec_hash
from tests.support.evaluations import committed, make_policy, make_suite
from tests.support.worlds import make_world, run_spec


def said(verdict="fail", score=0.0, reason="WRONG_ANSWER", **fields):
    return VerdictRecord(kind=VerifierKind.PROGRAM, verdict=verdict, score=score, reason_code=reason, **fields)


@pytest.fixture
def evaluate(project, engineer, workers):
    def run(outcome):
        suite = make_suite(project, dev=3, heldout=1)
        arms = [policy_arm(make_policy(project, "p", adapter=False))]
        with committed():
            start_evaluation(
                project=project,
                suite=suite,
                split="dev",
                purpose="baseline",
                arms=arms,
                sampling=Sampling(),
                by=engineer,
            )
        workers.work(outcome)
        return workers

    return run


def test_the_audit_is_stored_beside_the_verdict_and_changes_nothing(evaluate):
    audits = [said(message="a\0b", verifier_hash="b" * 64), said("quarantined", None, "VERIFIER_FLAKY"), None]

    def outcome(task, adapter, index):
        own = said("pass", 1.0, "OK", verifier_hash="a" * 64)
        return {"success": True, "audit": audits[int(task.key[-1])], "verification": own}

    workers = evaluate(outcome)
    assert {job.audit_share for job in workers.sent} == {1.0}
    rows = list(Episode.objects.order_by("group__task__position"))
    assert {(e.verdict, e.reward, e.success, e.verifier_hash) for e in rows} == {("pass", 1.0, True, "a" * 64)}
    assert [(e.audit_verdict, e.audit_score, e.audit_reason_code) for e in rows] == [
        ("fail", 0.0, "WRONG_ANSWER"), ("quarantined", None, "VERIFIER_FLAKY"), ("", None, ""),
    ]  # fmt: skip
    assert (rows[0].audit_message, rows[0].audit_hash) == ("a�b", "b" * 64)


@pytest.mark.parametrize(
    ("audit", "stored"),
    [(said("pass", None, "OK"), ("error", None)), (said("error", 1.0, "VERIFIER_CRASH"), ("error", None))],
)
def test_an_audit_that_contradicts_itself_is_none(evaluate, audit, stored):
    evaluate(lambda task, adapter, index: {"success": True, "audit": audit})
    assert set(Episode.objects.values_list("audit_verdict", "audit_score")) == {stored}


def test_a_quarantined_verdict_has_no_reward(evaluate):
    fields = {"verdict": "quarantined", "reward": None, "success": False, "reason_code": "VERIFIER_FLAKY"}
    evaluate(lambda task, adapter, index: fields if task.key.endswith("1") else {"success": True})
    assert set(Episode.objects.values_list("verdict", "reward")) == {("quarantined", None), ("pass", 1.0)}
    row = Episode.objects.filter(verdict="pass")[:1].get()
    for change in ({"verdict": "quarantined"}, {"verdict": "error"}, {"reward": None}, {"audit_verdict": "pass"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Episode.objects.filter(pk=row.pk).update(**change)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_runs_episodes_are_audited_in_its_share(monkeypatch, db, settings, tmp_path, share):
    settings.OBJECT_STORE_URL = f"file://{tmp_path}/objects"
    sent = []
    monkeypatch.setattr(messaging, "send_rollout", sent.append)
    world = make_world()
    spec = parse_run_spec(run_spec(rollout__audit_share=share))
    run = Run.objects.create(
        project=world.project,
        number=1,
        suite=world.suite,
        policy=world.policy,
        spec=msgspec.to_builtins(spec),
        spec_hash=spec_hash(spec),
        total_steps=spec.steps,
    )
    with committed():
        group = create_group(
            project=world.project,
            task=world.suite.tasks.first(),
            purpose="train",
            size=2,
            policy_adapter="a",
            policy_version=0,
            num_shots=0,
            sampling=Sampling(),
            run=run,
        )
        dispatch_group(group)
    assert [job.audit_share for job in sent] == [share]
