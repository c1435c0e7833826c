"""Arms with whole weights: one after another on their own engines, under a lease; the others beside them."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.evaluations import jobs
from apps.evaluations.models import Evaluation, EvaluationPurpose, EvaluationState
from apps.evaluations.plans import ArmSpec
from apps.evaluations.selection import choose_checkpoint
from apps.evaluations.selectors import evaluation_results
from apps.evaluations.services import cancel_evaluation, policy_arm, start_evaluation
from apps.policies.models import Policy
from apps.runs import reconciler
from apps.runs.models import Checkpoint, FleetInstall, FleetLease, Run, RunState
from apps.runs.services import cancel_run, leases, submit_run
from apps.runs.services.controls import lock_run
from apps.runs.signals import checkpoint_published
from gpu_workers.contracts.messages import Sampling, Transfer
from ratchet.problems import Problem
from tests.support.evaluations import Workers, committed, make_policy, make_suite, passing

ENGINES = ["http://full"]
SPEC = {"suite": "sums", "policy": "base", "steps": 2, "trainer": {"update": "full", "transfer": "broadcast"}}


@pytest.fixture(autouse=True)
def engines(settings) -> None:
    settings.ROLLOUT_FULL_ENGINE_URLS = ENGINES


@pytest.fixture
def suite(project):
    return make_suite(project, train=4, dev=6, heldout=4)


@pytest.fixture
def policies(project) -> dict[str, Policy]:
    whole = {"whole_weights": True}
    return {
        "base": make_policy(project, "base", adapter=False),
        "adapter": make_policy(project, "adapter"),
        "first": make_policy(project, "first", **whole),
        "second": make_policy(project, "second", **whole),
    }


def start(project, suite, policies, by) -> Evaluation:
    with committed():
        return start_evaluation(
            project=project, suite=suite, split="dev", purpose=EvaluationPurpose.BASELINE, by=by, samples=1,
            arms=[policy_arm(policy) for policy in policies], sampling=Sampling(temperature=0.0),
        )  # fmt: skip


def make_run(project, by) -> Run:
    with committed():
        return submit_run(project=project, spec=SPEC, by=by)


def holds(run: Run) -> FleetLease:
    with committed():
        lease = leases.ask_for_run(lock_run(run))
    assert lease.granted_at is not None
    return lease


def publish_last(run: Run) -> Checkpoint:
    checkpoint = Checkpoint.objects.create(
        run=run, attempt=1, version=2, uri="runs/v2", adapter="runs/v2/model", sha256="e" * 64, num_bytes=10,
    )  # fmt: skip
    with committed():
        checkpoint_published.send(sender=Run, run=run, checkpoint=checkpoint)
    Run.objects.filter(pk=run.pk).update(state=RunState.TRAINED, started_at=timezone.now(), version=2, step=2)
    return checkpoint


def test_whole_weights_take_turns_while_the_other_arms_run_on_the_shared_engines(
    project, suite, policies, engineer, workers
):
    evaluation = start(project, suite, policies.values(), engineer)
    workers.work(lambda task, name, index: {"success": name == policies["second"].engine_name})
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED, evaluation.status_message
    first, second = policies["first"].engine_name, policies["second"].engine_name
    whole = [job for job in workers.sent if job.policy.weights]
    assert [job.policy.weights for job in whole] == [first] * 6 + [second] * 6
    assert {tuple(job.engines) for job in whole} == {tuple(ENGINES)} and not any(job.policy.adapter for job in whole)
    shared = [job for job in workers.sent if not job.policy.weights]
    assert len(shared) == 12 and not any(job.engines for job in shared)
    assert [(job.install[0].name, job.transfer, job.engines) for job in workers.installs] == [
        (first, Transfer.AUTO, ENGINES), (second, Transfer.AUTO, ENGINES),
    ]  # fmt: skip
    retired = [name for names in FleetInstall.objects.values_list("retire", flat=True) for name in names]
    assert retired == [policies["adapter"].engine_name]
    assert [arm.success for arm in evaluation_results(None, evaluation).arms] == [0.0, 0.0, 0.0, 1.0]
    assert not leases.open_leases().exists()


def test_an_evaluation_waits_for_the_run_that_holds_the_engines_and_says_so(
    project, suite, policies, engineer, workers
):
    run = make_run(project, engineer)
    lease = holds(run)
    evaluation = start(project, suite, [policies["adapter"], policies["first"]], engineer)
    workers.work()
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.RUNNING
    words = f"6 of 12 groups done. Waits for the engines of full runs: run {run.number} holds it."
    assert evaluation.status_message == words
    assert not workers.installs
    with committed():
        cancel_run(run=run, by=engineer)
    lease.refresh_from_db()
    assert lease.released_at is not None
    workers.work()
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED


def test_the_last_evaluation_of_a_run_uses_its_turn_and_both_end_it(project, suite, policies, engineer, workers):
    run = make_run(project, engineer)
    lease = holds(run)
    checkpoint = publish_last(run)
    other = start(project, suite, [policies["first"]], engineer)
    workers.work()
    run.refresh_from_db()
    assert run.state == RunState.SUCCEEDED, run.status_message
    lease.refresh_from_db()
    assert lease.released_at is not None and lease.evaluation_id is None
    job = workers.installs[0]
    assert (job.install[0].name, job.transfer) == (checkpoint.engine_name, Transfer.BROADCAST)
    made = run.result
    assert made.whole_weights and (made.adapter, made.adapter_sha256) == ("runs/v2/model", "e" * 64)
    other.refresh_from_db()
    assert other.state == EvaluationState.FINISHED  # it came after
    assert [job.install[0].name for job in workers.installs] == [checkpoint.engine_name, policies["first"].engine_name]
    assert choose_checkpoint(run.pk) is None


def test_a_run_cancelled_during_its_evaluation_leaves_the_engines_to_it(project, suite, policies, engineer, workers):
    run = make_run(project, engineer)
    lease = holds(run)
    publish_last(run)
    with committed():
        workers.advance()
    with committed():
        cancel_run(run=Run.objects.get(pk=run.pk), by=engineer)
    lease.refresh_from_db()
    assert lease.released_at is None and lease.evaluation_id is not None
    workers.work()
    lease.refresh_from_db()
    assert lease.released_at is not None
    assert Evaluation.objects.get(run=run).state == EvaluationState.FINISHED


def test_a_cancelled_evaluation_gives_the_engines_back(project, suite, policies, engineer, workers):
    evaluation = start(project, suite, [policies["first"]], engineer)
    with committed():
        workers.advance()
    assert leases.open_leases().get().evaluation_id == evaluation.pk
    with committed():
        cancel_evaluation(evaluation=evaluation, by=engineer)
    assert not leases.open_leases().exists()


def test_a_turn_of_an_evaluation_that_is_gone_is_released_at_the_next_tick(project, suite, policies, engineer, workers):
    evaluation = start(project, suite, [policies["first"]], engineer)
    with committed():
        workers.advance()
    Evaluation.objects.filter(pk=evaluation.pk).update(state=EvaluationState.FAILED, finished_at=timezone.now())
    with committed():
        jobs.tick()
    assert not leases.open_leases().exists()


def test_engines_that_restart_take_the_arms_weights_again(project, suite, policies, engineer, workers: Workers):
    evaluation = start(project, suite, [policies["first"]], engineer)
    with committed():
        workers.advance()
    workers.answer_fleet()
    workers.weights = "default"  # they restarted
    with committed():
        workers.advance()
    while workers.rollouts:
        workers.answer_rollout(workers.rollouts.popleft(), passing)
    workers.work()
    assert [job.install[0].name for job in workers.installs] == [policies["first"].engine_name] * 2
    groups = [item.group for item in evaluation.items.select_related("group")]
    assert all(group.boundary == "engine" and group.state == "pending" for group in groups)  # sent again by the tick


def test_engines_that_refuse_are_asked_again_and_the_reason_is_shown(
    project, suite, policies, engineer, workers, monkeypatch
):
    evaluation = start(project, suite, [policies["first"]], engineer)
    workers.refusal = "engine http://full is down"
    with committed():
        workers.advance()
    workers.answer_fleet()
    with committed():
        workers.advance()
    evaluation.refresh_from_db()
    assert "to take the weights of first: engine http://full is down" in evaluation.status_message
    workers.refusal = ""
    later = timezone.now() + timedelta(seconds=30)
    with committed():
        reconciler.advance_evaluation_groups(later)
    workers.work()
    evaluation.refresh_from_db()
    assert evaluation.state == EvaluationState.FINISHED


def test_without_engines_for_them_such_arms_are_refused(project, suite, policies, engineer, workers, settings):
    settings.ROLLOUT_FULL_ENGINE_URLS = []
    with pytest.raises(Problem, match="first has whole weights, but no engines are set"):
        start(project, suite, [policies["first"]], engineer)
    assert ArmSpec("x", policies["first"]).whole_weights
