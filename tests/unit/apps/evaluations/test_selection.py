"""Checkpoint selection: which checkpoints meet the dev split, which one becomes the run's policy, and why."""

import pytest
from django.utils import timezone

from apps.evaluations import jobs
from apps.evaluations.models import Evaluation
from apps.policies.models import Policy
from apps.runs.models import Checkpoint, Run, RunState
from apps.runs.services import submit_run
from apps.runs.signals import checkpoint_published
from tests.support.evaluations import committed, make_policy, make_suite

SPEC = {
    "name": "Sums by RL",
    "suite": "sums",
    "policy": "base",
    "steps": 6,
    "rollout": {"num_shots": 2, "max_new_tokens": 40},
    "evaluation": {"dev_every": 2, "dev_tasks": 5},
}


@pytest.fixture
def make_run(project, engineer, workers):
    def make(dev: int = 8, **changes) -> Run:
        make_suite(project, train=8, heldout=4, **({"dev": dev} if dev else {}))
        make_policy(project, "base", adapter=False)
        with committed():
            run = submit_run(project=project, spec={**SPEC, **changes}, by=engineer)
        Run.objects.filter(pk=run.pk).update(total_steps=6)
        return Run.objects.get(pk=run.pk)

    return make


def publish(run: Run, version: int) -> Checkpoint:
    checkpoint = Checkpoint.objects.create(
        run=run, attempt=1, version=version, uri=f"runs/v{version}", adapter=f"runs/v{version}/adapter",
        sha256=f"{version:064}", num_bytes=10, train_cpu_seconds=20.0 * version,
    )  # fmt: skip
    with committed():
        checkpoint_published.send(sender=Run, run=run, checkpoint=checkpoint)
    return checkpoint


def train_all(run: Run, workers, success: dict[int, float]) -> Run:
    """Publish every version; version v passes the share success[v] of the five dev tasks it meets."""
    for version in range(1, 7):
        publish(run, version)
    Run.objects.filter(pk=run.pk).update(state=RunState.TRAINED, started_at=timezone.now())

    def outcome(task, adapter, index):
        version, seen = int(adapter.rpartition("@v")[2]), sorted_dev.index(task.key)
        return {"success": seen < round(5 * success.get(version, 0))}

    evaluation = Evaluation.objects.filter(run=run).first()
    tasks = evaluation.items.order_by("task__position") if evaluation else []
    sorted_dev = [item.task.key for item in tasks]
    workers.work(outcome)
    jobs.tick()
    run.refresh_from_db()
    return run


def test_the_best_on_dev_becomes_the_policy_and_ties_go_to_the_earliest(make_run, workers, project):
    run = train_all(make_run(), workers, {2: 0.4, 4: 0.8, 6: 0.8})
    assert run.state == RunState.SUCCEEDED, run.status_message
    policy = run.result
    assert (policy.slug, policy.kind, policy.num_shots) == (f"run-{run.number}-v4", "reinforced", 2)
    assert policy.adapter_sha256 == f"{4:064}" and policy.train_cpu_seconds == 80.0
    assert policy.parent.slug == "base" and policy.created_by == run.created_by and policy.run_id == run.pk
    assert run.status_message == f"Policy {policy.slug} made of version 4: 80.0 % of 5 dev tasks, best of 3 evaluated."
    measured = dict(run.checkpoints.filter(dev_n=5).values_list("version", "dev_success"))
    assert measured == {2: 0.4, 4: 0.8, 6: 0.8}
    assert {e.split for e in Evaluation.objects.all()} == {"dev"}
    assert {job.policy.num_shots for job in workers.sent} == {2}
    assert {job.sampling.max_new_tokens for job in workers.sent} == {40}
    assert {job.sampling.temperature for job in workers.sent} == {0.0}


def test_without_dev_evaluations_the_last_checkpoint_wins(make_run, workers):
    run = train_all(make_run(evaluation={"dev_tasks": 0}), workers, {})
    assert run.result.run_version == 6 and "no dev tasks to choose by" in run.status_message
    assert not Evaluation.objects.exists()


def test_a_suite_without_dev_tasks_is_no_error(make_run, workers):
    run = train_all(make_run(dev=0), workers, {})
    assert run.state == RunState.SUCCEEDED and run.result.run_version == 6


def test_only_the_last_checkpoint_is_measured_without_dev_every(make_run, workers):
    run = train_all(make_run(evaluation={"dev_tasks": 5}), workers, {6: 0.6})
    assert run.checkpoints.get(dev_n__isnull=False).version == 6 and run.result.run_version == 6


def test_the_run_waits_for_the_slowest_dev_evaluation(make_run, workers):
    run = make_run()
    for version in (2, 4, 6):
        publish(run, version)
    Run.objects.filter(pk=run.pk).update(state=RunState.TRAINED, started_at=timezone.now())
    jobs.choose_checkpoint(str(run.pk))
    run.refresh_from_db()
    assert run.state == RunState.TRAINED and not Policy.objects.filter(run_id=run.pk).exists()


def test_a_supervised_run_makes_a_supervised_policy(make_run, workers):
    run = train_all(make_run(algorithm={"kind": "sft"}), workers, {2: 0.2, 4: 0.2, 6: 0.2})
    assert run.result.kind == "supervised" and run.result.run_version == 2


def test_a_run_that_published_nothing_has_no_policy(make_run, workers):
    run = make_run()
    Run.objects.filter(pk=run.pk).update(state=RunState.TRAINED, started_at=timezone.now())
    jobs.tick()
    run.refresh_from_db()
    assert run.state == RunState.SUCCEEDED and run.result is None
    assert run.status_message == "The run published no checkpoint."
