"""Gates from opening to decision: verdict from stored episodes, separation of duties, override, replay, rollback."""

import pytest

from apps.audit.models import AuditEvent
from apps.evaluations.models import HeldoutLook
from apps.evaluations.services import cancel_evaluation
from apps.policies.models import Channel, MoveKind
from apps.policies.services import move_channel, set_channel
from apps.promotions import receivers
from apps.promotions.models import Gate, GateState, GateVerdict
from apps.promotions.selectors import allowed, decisions_waiting, find_gate, gate_page
from apps.promotions.services import confirm_override, decide, decline_override, open_gate
from apps.runs.models import Episode, FleetInstall
from ratchet.problems import Problem
from tests.support.evaluations import committed, fill, make_policy

WHY = "It is better where our users are."


def approve(gate, by, **changes):
    with committed():
        return decide(**{"gate": gate, "kind": "approve", "by": by, "evidence_digest": gate.evidence_digest, **changes})


def refusal(call, *args, **kwargs) -> Problem:
    with pytest.raises(Problem) as caught:
        call(*args, **kwargs)
    return caught.value


def test_a_gate_is_judged_from_stored_episodes_and_waits(world):
    gate = world.finish(world.open())
    assert gate.state == GateState.WAITING and gate.verdict == GateVerdict.PASS, gate.headline
    assert gate.headline == "Better on held-out tasks, and nothing else got worse"
    report = gate.report
    assert [arm["role"] for arm in report["arms"]] == ["incumbent", "candidate", "baseline"]
    assert report["arms"][1]["success"] == 0.9 and report["arms"][0]["success"] == pytest.approx(0.3)
    tasks = report["tasks"]
    assert len(tasks["better"]) == 49 and len(tasks["worse"]) == 1 and tasks["num_unchanged"] == 30
    worst = tasks["worse"][0]
    assert worst["incumbent"]["answer"] == "42" and worst["candidate"]["reason_code"] == "WRONG_ANSWER"
    assert Episode.objects.get(pk=worst["candidate"]["episode_id"]).success is False
    assert report["comparisons"][0]["label"] == "prompted" and report["comparisons"][0]["words"] == "clearly better"
    assert report["alpha"] == pytest.approx(0.0304, abs=1e-4)
    assert HeldoutLook.objects.get().verdict == "pass"
    assert (
        AuditEvent.objects.filter(subject_id=str(gate.pk)).values_list("tag", flat=True).order_by("id")[0]
        == "user:gate:open"
    )


def test_the_candidate_stays_loaded_while_the_gate_waits(world, owner):
    loser = make_policy(world.project, "loser")
    world.finish(world.open(extra_arms=[loser]))
    retired = [name for job in FleetInstall.objects.all() for name in job.retire]
    assert retired == [loser.engine_name]


def test_a_slower_candidate_is_blocked_in_words(world):
    gate = world.finish(world.open(), total_seconds=9.0)
    assert gate.verdict == GateVerdict.FAIL
    assert gate.headline.startswith("Blocked: latency p95 got worse: lower bound")


def test_a_failed_evaluation_gives_no_verdict(world):
    gate = world.open()
    with committed():
        cancel_evaluation(evaluation=gate.evaluation, by=world.engineer)
    world.compute()
    gate.refresh_from_db()
    assert gate.state == GateState.FAILED and gate.headline.startswith("No verdict: the evaluation was cancelled.")


def test_a_lost_message_is_made_good_by_the_tick(world):
    gate = world.open()
    fill(gate.evaluation, world.outcome(0.9))
    world.computes.clear()
    receivers.judge_what_was_missed()
    gate.refresh_from_db()
    assert gate.verdict == GateVerdict.PASS


def test_opening_is_refused_where_nothing_can_be_compared(world, viewer, project):
    assert refusal(world.open, by=viewer).status == 403
    assert "serves already" in refusal(world.open, candidate=world.incumbent).detail
    world.open()
    assert refusal(world.open).code == "gate_open"
    assert Gate.objects.count() == 1 and HeldoutLook.objects.count() == 1


def test_approving_moves_the_channel_and_a_second_decision_is_refused(world, approver):
    gate = world.finish(world.open())
    assert decisions_waiting(approver) == [gate]
    decision = approve(gate, approver)
    world.channel.refresh_from_db()
    assert world.channel.policy == world.candidate
    move = world.channel.moves.first()
    assert (move.kind, move.decision_id, move.by) == (MoveKind.PROMOTION, decision.pk, approver)
    gate.refresh_from_db()
    assert gate.state == GateState.DECIDED and decisions_waiting(approver) == []
    assert refusal(approve, gate, approver).code == "gate_not_waiting"
    event = AuditEvent.objects.get(tag="user:gate:approve")
    assert event.evidence["evidence_digest"] == gate.evidence_digest and event.actor_name == "pam"


def test_who_submitted_does_not_decide(world, approver, engineer, owner, project):
    gate = world.finish(world.open())
    assert refusal(approve, gate, engineer).code == "forbidden"
    for field, who in (("submitted_by", approver), ("candidate", approver)):
        other = world.finish(world.open(by=approver)) if field == "submitted_by" else gate
        if field == "candidate":
            gate.candidate.created_by = approver
            gate.candidate.save()
        assert refusal(approve, other, who).code == "separation_of_duties"
        assert "Somebody else must decide" in allowed(who, find_gate(who, other.pk)).why_not
    assert approve(gate, owner).by == owner


def test_what_was_on_screen_must_be_what_is_stored(world, approver):
    gate = world.finish(world.open())
    assert refusal(approve, gate, approver, evidence_digest="0" * 64).code == "evidence_changed"
    episode = Episode.objects.filter(success=False).first()
    Episode.objects.filter(pk=episode.pk).update(success=True, verdict="pass", reward=1.0)
    assert refusal(approve, gate, approver).code == "evidence_changed"
    world.channel.refresh_from_db()
    assert world.channel.policy == world.incumbent


def test_an_approval_needs_a_pass_and_an_unmoved_channel(world, approver):
    gate = world.finish(world.open(), success=0.31)
    assert gate.verdict == GateVerdict.INCONCLUSIVE
    assert refusal(approve, gate, approver).code == "not_passed"
    passed = world.finish(world.open())
    move_channel(channel=world.channel, to_policy=world.prompted, kind="promotion", by=None, reason="another gate")
    assert refusal(approve, passed, approver).code == "incumbent_changed"
    assert "has moved since" in allowed(approver, find_gate(approver, passed.pk)).why_not


def test_rejecting_needs_a_reason_and_moves_nothing(world, approver):
    gate = world.finish(world.open())
    assert refusal(approve, gate, approver, kind="reject", reason="no").code == "invalid"
    approve(gate, approver, kind="reject", reason=WHY)
    world.channel.refresh_from_db()
    gate.refresh_from_db()
    assert world.channel.policy == world.incumbent and gate.state == GateState.DECIDED


def test_an_override_needs_a_reason_and_a_second_approver(world, approver, second_approver, engineer):
    gate = world.finish(world.open(), success=0.31)
    digest = gate.evidence_digest
    assert refusal(approve, gate, approver, kind="override", reason=" ").code == "invalid"
    approve(gate, approver, kind="override", reason=WHY)
    world.channel.refresh_from_db()
    assert world.channel.policy == world.incumbent
    assert refusal(approve, gate, second_approver).code == "override_waiting"
    for who, code in ((approver, "second_approver"), (engineer, "forbidden")):
        assert refusal(confirm_override, gate=gate, by=who, evidence_digest=digest).code == code
    assert decisions_waiting(approver) == [] and decisions_waiting(second_approver) == [gate]
    assert refusal(confirm_override, gate=gate, by=second_approver, evidence_digest="0" * 64).code == "evidence_changed"
    with committed():
        decision = confirm_override(gate=gate, by=second_approver, evidence_digest=digest)
    world.channel.refresh_from_db()
    assert world.channel.policy == world.candidate
    assert (decision.by, decision.second_by) == (approver, second_approver) and decision.effective_at


def test_a_declined_override_leaves_the_gate_waiting(world, approver, second_approver):
    gate = world.finish(world.open(), success=0.31)
    approve(gate, approver, kind="override", reason=WHY)
    decline_override(gate=gate, by=second_approver, reason="The evidence is too thin.")
    gate.refresh_from_db()
    assert gate.state == GateState.WAITING and not hasattr(Gate.objects.get(pk=gate.pk), "decision")
    assert AuditEvent.objects.filter(tag="user:gate:decline_override").exists()
    passed = world.finish(world.open())
    assert refusal(approve, passed, approver, kind="override", reason=WHY).code == "override_not_needed"


def test_a_replay_without_harm_keeps_the_promotion(world, approver):
    gate = world.finish(world.open())
    approve(gate, approver)
    world.broken = {"regression-000", "regression-001"}
    world.replay(gate)
    assert gate.regression_result["status"] == "passed"
    assert gate.regression_result["words"].startswith("2 of 24 tasks broke, 0 were mended")
    assert world.channel.policy == world.candidate


def test_a_replay_that_breaks_tasks_rolls_back_by_itself(world, approver):
    gate = world.finish(world.open())
    approve(gate, approver)
    world.broken = {f"regression-{number:03}" for number in range(5)}  # p = 1/32
    world.replay(gate)
    assert gate.regression_result["status"] == "failed" and gate.regression_result["rolled_back"]
    assert [task["key"] for task in gate.regression_result["tasks"]] == sorted(world.broken)
    assert world.channel.policy == world.incumbent
    move = world.channel.moves.first()
    assert move.kind == MoveKind.ROLLBACK and "5 of 24 tasks broke" in move.reason and move.by is None


def test_a_channel_that_moved_on_is_not_rolled_back(world, approver):
    gate = world.finish(world.open())
    approve(gate, approver)
    move_channel(channel=world.channel, to_policy=world.prompted, kind="promotion", by=None, reason="next gate")
    world.broken = {f"regression-{number:03}" for number in range(9)}
    world.replay(gate)
    assert gate.regression_result["status"] == "failed" and not gate.regression_result["rolled_back"]
    assert world.channel.policy == world.prompted


def test_the_page_hides_heldout_answers_from_those_who_train(world, approver, engineer, stranger):
    gate = world.finish(world.open())
    page = gate_page(approver, find_gate(approver, gate.pk))
    assert page.shows_tasks and page.report["tasks"]["worse"] and page.allowed.approve and not page.allowed.override
    assert [event.tag for event in page.history] == ["user:gate:open", "system:gate:verdict"]
    assert page.ledger.left == pytest.approx(0.05 - page.ledger.spent)
    blind = gate_page(engineer, find_gate(engineer, gate.pk))
    assert "tasks" not in blind.report and blind.report["tiles"] and not blind.allowed.approve
    assert refusal(find_gate, stranger, gate.pk).status == 404


def test_a_second_look_tests_at_a_smaller_alpha(world, project):
    world.finish(world.open())
    again = world.finish(world.open(samples=2))
    assert again.report["plan"]["look"] == 2
    assert again.report["alpha"] == pytest.approx(0.0076, abs=1e-4)
    assert again.evaluation.sampling["temperature"] == 1.0


def test_a_channel_without_a_policy_needs_no_gate(world, project, engineer):
    empty = Channel.objects.create(project=project, name="canary")
    wrong = {"project": project, "channel": empty, "candidate": make_policy(project, "x"), "by": engineer}
    problem = refusal(open_gate, gate_policy=world.gate_policy, suite=world.suite, **wrong)
    assert "serves nothing yet" in problem.detail


def test_a_candidate_with_whole_weights_is_judged_but_no_channel_takes_it(world, approver, settings):
    settings.ROLLOUT_FULL_ENGINE_URLS = ["http://full"]
    world.candidate = make_policy(world.project, "heavy", by=world.engineer, whole_weights=True)
    gate = world.finish(world.open(candidate=world.candidate))
    assert gate.verdict == GateVerdict.PASS, gate.headline
    words = allowed(approver, gate)
    assert (words.approve, words.reject, words.override) == (False, True, False)
    assert "policies/heavy" in words.why_not and "train an adapter" in words.why_not
    problem = refusal(approve, gate, approver)
    assert (problem.status, problem.code) == (409, "whole_weights")
    assert "The verdict stands: reject the candidate" in problem.detail
    world.channel.refresh_from_db()
    assert world.channel.policy == world.incumbent
    decision = approve(gate, approver, kind="reject", reason="It is served elsewhere.")
    assert decision.effective_at is not None


def test_a_channel_is_never_set_up_with_or_moved_to_whole_weights(world, owner):
    heavy = make_policy(world.project, "heavy", whole_weights=True)
    for problem in (
        refusal(set_channel, project=world.project, name="other", policy=heavy, by=owner),
        refusal(move_channel, channel=world.channel, to_policy=heavy, kind=MoveKind.PROMOTION, by=owner, reason="now"),
    ):
        assert problem.status == 409 and "a Hugging Face model" in problem.detail
