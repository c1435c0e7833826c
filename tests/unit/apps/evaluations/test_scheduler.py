"""An evaluation from its plan to its results: order, seeds, installs, failures, cancellation."""

from collections import Counter
from datetime import timedelta

import pytest
from django.utils import timezone

from apps.audit.models import AuditEvent
from apps.evaluations import scheduler
from apps.evaluations.models import Evaluation, EvaluationPurpose, EvaluationState
from apps.evaluations.plans import ArmSpec
from apps.evaluations.selectors import evaluation_results
from apps.evaluations.services import cancel_evaluation, policy_arm, spend_look, start_evaluation
from apps.policies.services import set_channel
from apps.runs import reconciler
from apps.runs.models import Group, GroupState, Outcome
from gpu_workers.contracts.messages import Sampling
from ratchet.problems import Problem
from tests.support.evaluations import committed, make_policy, make_suite, passing


@pytest.fixture
def suite(project):
    return make_suite(project, dev=4, heldout=16)


@pytest.fixture
def arms(project):
    return [policy_arm(make_policy(project, "base", adapter=False)), policy_arm(make_policy(project, "new"))]


def start(project, suite, arms, by, **changes) -> Evaluation:
    values = {"split": "heldout", "purpose": EvaluationPurpose.GATE, "samples": 2, **changes}
    with committed():
        return start_evaluation(
            project=project, suite=suite, arms=arms, sampling=Sampling(temperature=0.7, seed=5), by=by, **values
        )


def test_arms_run_interleaved_with_the_same_seeds_and_few_in_flight(
    project, suite, arms, engineer, workers, monkeypatch
):
    monkeypatch.setattr(scheduler, "MAX_IN_FLIGHT", 20)
    evaluation = start(project, suite, arms, engineer)
    workers.work(lambda task, adapter, index: {"success": bool(adapter) and index == 0})
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED, evaluation.status_message
    assert len(workers.sent) == 32 and workers.most_in_flight == 20
    seeds: dict[str, set[int]] = {}
    for job in workers.sent:
        seeds.setdefault(job.task, set()).add(job.sampling.seed)
        assert job.group_size == 2 and job.purpose == "evaluation"
    assert all(len(found) == 1 for found in seeds.values())
    assert len({next(iter(found)) for found in seeds.values()}) == 16
    for pair in range(16):
        both = workers.sent[2 * pair : 2 * pair + 2]
        assert {job.policy.adapter for job in both} == {"", arms[1].policy.engine_name}
        assert both[0].task == both[1].task
    first = Counter(workers.sent[2 * pair].policy.adapter for pair in range(16))
    assert set(first.values()) == {8}  # neither arm always goes first
    base, new = evaluation_results(None, evaluation).arms
    assert (base.success, new.success, new.n, new.num_missing) == (0.0, 0.5, 32, 0)
    assert new.low < 0.5 < new.high
    assert new.episode_seconds == pytest.approx(32.0)
    assert new.train_cpu_seconds == 100.0 and base.train_cpu_seconds == 0.0


def test_the_plan_is_hashed_and_audited_before_anything_runs(project, suite, arms, engineer, workers):
    first, again = start(project, suite, arms, engineer), start(project, suite, arms, engineer)
    other = start(project, suite, arms, engineer, samples=1)
    assert first.plan_hash == again.plan_hash != other.plan_hash
    event = AuditEvent.objects.get(subject_id=str(first.pk))
    assert event.tag == "user:evaluation:start" and event.after["plan_hash"] == first.plan_hash
    assert not workers.sent


def test_an_engine_that_is_down_is_waited_for_and_nothing_is_lost(project, suite, arms, engineer, workers, monkeypatch):
    evaluation = start(project, suite, arms, engineer)
    workers.refusal = "no engine answers at http://engine"
    with committed():
        workers.advance()
    workers.answer_fleet()
    workers.advance()
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.QUEUED
    assert (
        evaluation.status_message == "Waiting for the engines to hold the policies: no engine answers at http://engine"
    )
    assert not workers.sent
    workers.refusal = ""
    with committed():
        reconciler.advance_evaluation_groups(timezone.now() + timedelta(seconds=10))
    workers.work()
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED


def test_groups_that_failed_on_an_engine_are_tried_after_the_engines_are_asked_again(
    project, suite, arms, engineer, workers, monkeypatch
):
    evaluation = start(project, suite, arms, engineer)
    down = {"dispatches": 0}

    def fails(task, adapter) -> str:
        down["dispatches"] += task.key == "heldout-003"
        return "connection refused" if task.key == "heldout-003" and down["dispatches"] <= 6 else ""

    workers.failures = fails
    later = timezone.now()
    for _ in range(12):
        workers.work()
        later += timedelta(seconds=70)
        with committed():
            reconciler.advance_evaluation_groups(later)
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED, evaluation.status_message
    assert evaluation.status_message == "32 of 32 groups scored."
    assert Group.objects.filter(outcome=Outcome.INFRASTRUCTURE_FAILED).count() == 2
    assert sorted(evaluation.items.filter(num_tries=2).values_list("task__key", flat=True)) == ["heldout-003"] * 2


def test_what_never_works_is_missing_and_never_a_failure_of_the_policy(project, suite, arms, engineer, workers):
    evaluation = start(project, suite, arms, engineer)
    workers.failures = lambda task, adapter: "sandbox gone" if task.key == "heldout-000" else ""
    later = timezone.now()
    for _ in range(12):
        workers.work()
        later += timedelta(seconds=70)
        with committed():
            reconciler.advance_evaluation_groups(later)
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED
    assert "2 had no result after 3 tries" in evaluation.status_message
    result = evaluation_results(None, evaluation).arms[0]
    assert (result.n, result.num_missing, result.success) == (30, 2, 1.0)


def test_adapters_are_dropped_afterwards_but_not_those_in_service(project, suite, arms, approver, workers):
    served = make_policy(project, "served")
    set_channel(project=project, name="production", policy=served, by=None)
    start(project, suite, [*arms, policy_arm(served)], approver)
    workers.work()
    assert workers.adapters == {served.engine_name}


def test_cancelling_closes_what_is_open_and_keeps_what_was_scored(project, suite, arms, engineer, viewer, workers):
    evaluation = start(project, suite, arms, engineer)
    with committed():
        workers.advance()
    workers.answer_fleet()
    with committed():
        workers.advance()
    for _ in range(5):
        workers.answer_rollout(workers.rollouts.popleft(), passing)
    with pytest.raises(Problem) as refused:
        cancel_evaluation(evaluation=evaluation, by=viewer)
    assert refused.value.status == 403
    with committed():
        cancel_evaluation(evaluation=evaluation, by=engineer, reason="wrong suite")
        cancel_evaluation(evaluation=evaluation, by=engineer)
    evaluation.refresh_from_db()
    assert evaluation.status_message == "Cancelled by ed: wrong suite."
    groups = Group.objects.filter(evaluation_item__evaluation=evaluation)
    assert groups.exclude(state=GroupState.CLOSED).count() == 0
    assert groups.filter(outcome=Outcome.SCORED).count() == 5
    workers.answer_rollout(workers.rollouts.popleft(), passing)  # too late: refused, nothing changes
    assert groups.filter(outcome=Outcome.SCORED).count() == 5


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"split": "regression"}, "no_tasks"),
        ({"samples": 0}, "invalid"),
        ({"samples": 65}, "invalid"),
        ({"arms": []}, "invalid"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(project, suite, arms, engineer, workers, changes, code):
    with pytest.raises(Problem) as refused:
        start(project, suite, changes.pop("arms", arms), engineer, **changes)
    assert refused.value.code == code
    assert not Evaluation.objects.exists()


def test_arms_must_be_of_the_project_and_differ(project, other_project, suite, arms, engineer, workers):
    foreign = ArmSpec("foreign", policy=make_policy(other_project, "foreign"))
    for wrong, words in (([*arms, foreign], "another project"), ([arms[0], arms[0]], "named twice")):
        with pytest.raises(Problem, match=words):
            start(project, suite, wrong, engineer)


def test_a_trained_policy_meets_heldout_tasks_only_in_a_gate(project, suite, arms, engineer, approver, workers):
    trained = policy_arm(make_policy(project, "trained"))
    with pytest.raises(Problem) as refused:
        start(project, suite, [trained], engineer, purpose=EvaluationPurpose.BASELINE)
    assert refused.value.code == "heldout_by_gate_only"
    supervised = policy_arm(make_policy(project, "supervised", kind="supervised"))
    start(project, suite, [arms[0], supervised], engineer, purpose=EvaluationPurpose.BASELINE)
    start(project, suite, [trained], approver, purpose=EvaluationPurpose.BASELINE)
    start(project, suite, [trained], engineer, purpose=EvaluationPurpose.DEV, split="dev")


def test_results_show_heldout_tasks_only_to_those_with_the_right(project, suite, arms, engineer, approver, workers):
    evaluation = start(project, suite, arms, engineer)
    workers.work()
    assert evaluation_results(engineer, evaluation).tasks is None
    tasks = evaluation_results(approver, evaluation).tasks
    assert len(tasks) == 16 and tasks[0].key == "heldout-000"
    assert [tasks[0].success(arm) for arm in (0, 1)] == [1.0, 1.0]


def test_each_look_spends_less(project, suite, arms, engineer, workers):
    looks = [spend_look(evaluation=start(project, suite, arms, engineer), alpha=0.05, by=engineer) for _ in range(3)]
    assert [look.number for look in looks] == [1, 2, 3]
    assert [round(look.alpha, 4) for look in looks] == [0.0304, 0.0076, 0.0034]
