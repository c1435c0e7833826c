"""Groups that the bound would leave behind: waited for, cancelled, drawn; over-sampling; what they cost."""

from datetime import timedelta

import pytest
from rest_framework.test import APIClient

from apps.runs import messaging, selectors
from apps.runs.models import Batch, Group, GroupState, Run, RunState
from gpu_workers.contracts.messages import RolloutJob
from tests.support.worlds import make_world, run_spec


def fresh(run) -> Run:
    return Run.objects.get(pk=run.pk)


def trained(plane, run):
    plane.play(until=lambda: fresh(run).state == RunState.TRAINED)
    assert fresh(run).state == RunState.TRAINED, (fresh(run).status_code, fresh(run).status_message)
    assert selectors.ledger(run).adds_up
    bound = run.spec["rollout"]["max_staleness"]
    assert not Group.objects.filter(run=run, outcome="trained", age__gt=bound).exists()


def hold_one(plane, run):
    """Keep one group at its worker until all else stands still; returns its job."""
    plane.play(until=lambda: bool(plane.rollouts))
    held = plane.rollouts.popleft()
    for _ in range(400):
        if not plane.step():
            break
    return held


def test_a_straggler_is_cancelled_its_worker_told_and_its_task_comes_again(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=5))
    held = hold_one(plane, run)
    left = Group.objects.get(pk=held.group_id)
    assert (left.outcome, left.straggler, left.propensity) == ("stale", "abort", 0.0)
    assert "left it behind" in left.outcome_reason
    assert left.cancelled_seconds > 0
    assert held.group_id in {key for signal in plane.signals for key in signal.group_ids if signal.policy is None}
    again = left.requeues.get()
    assert again.task_id == left.task_id
    plane.report_group(held)  # it did not hear of it
    assert "closed already" in plane.ingest(plane.inbox.pop())
    trained(plane, run)


def test_a_batch_waits_for_a_straggler_and_trains_it(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=5, rollout__stragglers="wait"))
    held = hold_one(plane, run)
    group = Group.objects.get(pk=held.group_id)
    assert (group.state, group.straggler, group.propensity) == ("running", "wait", 1.0)
    num_batches = Batch.objects.filter(run=run).count()
    assert num_batches < 5
    plane.report_group(held)
    trained(plane, run)
    group.refresh_from_db()
    assert (group.outcome, group.age) == ("trained", 1)
    assert not Group.objects.filter(run=run, outcome="stale").exists()


def test_nobody_waits_longer_than_until_the_deadline(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=5, rollout__stragglers="wait"))
    held = hold_one(plane, run)
    plane.now += timedelta(seconds=320)
    trained(plane, run)
    group = Group.objects.get(pk=held.group_id)
    assert group.retry_seconds >= 300 * group.size
    assert group.dispatch == 2
    assert group.outcome in ("trained", "cancelled")  # sent again it named the newest version, so it was fresh


def test_a_task_on_its_last_chance_is_waited_for(world, make_plane, monkeypatch):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=8, rollout__max_requeues=1))
    plane.play(until=lambda: bool(plane.rollouts))
    held = plane.rollouts.popleft()
    slow: list[RolloutJob] = []
    divert = lambda job: slow.append(job) if job.task == held.task else plane.send_rollout(job)  # noqa: E731
    monkeypatch.setattr(messaging, "send_rollout", divert)
    for _ in range(600):
        if not plane.step():
            break
    again = Group.objects.get(pk=held.group_id).requeues.get()
    job = next(job for job in slow if job.group_id == str(again.id))
    assert (again.state, again.straggler, again.propensity) == ("running", "wait", 1.0)
    plane.report_group(job)
    trained(plane, run)
    again.refresh_from_db()
    assert again.outcome == "trained"


def test_a_share_of_stragglers_is_drawn_to_be_waited_for_and_the_draw_is_recorded(world, make_plane):
    plane = make_plane(seed=5, slow_rollout=0.4)
    spec = run_spec(steps=12, rollout__recovery_share=0.5, rollout__max_requeues=64)
    run = plane.submit(world, spec)
    trained(plane, run)
    drawn = Group.objects.filter(run=run).exclude(straggler="")
    assert set(drawn.values_list("propensity", flat=True)) == {0.5}
    assert set(drawn.values_list("straggler", flat=True)) == {"wait", "abort"}
    arms = {arm.arm: arm for arm in selectors.long_tail(run).arms}
    assert arms["wait"].num_groups == drawn.filter(straggler="wait").count()
    assert arms["abort"].num_groups == drawn.filter(straggler="abort").count()
    assert arms["wait"].num_passed > 0
    assert arms["abort"].num_passed == 0


def test_running_episodes_are_moved_to_every_newer_version(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=5, rollout__stragglers="continue"))
    held = hold_one(plane, run)
    moves = [s for s in plane.signals if s.policy is not None and held.group_id in s.group_ids]
    assert [move.policy.version for move in moves][:1] == [1]
    assert moves[0].policy.adapter == run.checkpoints.get(version=1).engine_name
    assert Group.objects.get(pk=held.group_id).policy_version == 0  # of its oldest token: what the bound is about
    trained(plane, run)


def test_over_sampling_starts_more_than_a_synchronous_batch_needs_and_takes_the_first(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=3, rollout__max_staleness=0, rollout__over_sampling=0.5))
    plane.play(until=lambda: bool(plane.rollouts))
    assert Group.objects.filter(run=run).count() == 3  # two make a batch
    held = plane.rollouts.popleft()
    plane.play(until=lambda: Batch.objects.filter(run=run).exists())
    assert Group.objects.get(pk=held.group_id).outcome == "stale"
    trained(plane, run)


def test_a_group_sent_again_names_the_newest_version(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=6, rollout__max_staleness=2))
    plane.play(until=lambda: bool(plane.rollouts))
    held = plane.rollouts.popleft()
    plane.play(until=lambda: fresh(run).confirmed_version >= 1)
    plane.report_failure(held, "infrastructure", "no sandbox could start")
    plane.now += timedelta(seconds=5)
    plane.play(until=lambda: any(job.group_id == held.group_id for job in plane.rollouts))
    job = next(job for job in plane.rollouts if job.group_id == held.group_id)
    assert job.policy.version == Group.objects.get(pk=held.group_id).policy_version >= 1
    assert job.policy.adapter == run.checkpoints.get(version=job.policy.version).engine_name


def test_two_runs_on_a_saturated_fleet_share_it_equally(db, make_plane):
    world = make_world()
    plane = make_plane(seed=1)
    big = plane.submit(world, run_spec(steps=40, rollout__prompts_per_batch=12, rollout__max_staleness=3))
    plane.play(until=lambda: len(plane.rollouts) >= 20)
    # The fleet takes two groups at a time, ten seconds each: those that wait say so when they are done.
    for number in range(12):
        plane.now += timedelta(seconds=10 * (number % 2))
        report_slow(plane, waited=10.0 * (number // 2))
    small = plane.submit(world, run_spec(steps=40, rollout__prompts_per_batch=2))
    plane.play(max_events=plane.events + 60, until=lambda: Group.objects.filter(run=small, dispatch=1).exists())
    running = {run.pk: Group.objects.filter(run=run, state=GroupState.RUNNING).count() for run in (big, small)}
    before = running[big.pk]
    for number in range(8):
        plane.now += timedelta(seconds=10 * (number % 2))
        report_slow(plane, waited=60.0, run_id=str(big.pk))
    after = Group.objects.filter(run=big, state=GroupState.RUNNING).count()
    assert after < before  # what ends is not replaced while more than its share is out
    assert Group.objects.filter(run=small, dispatch=1).exists()


def test_a_fleet_of_one_group_at_a_time_leaves_no_run_without_a_turn(db, make_plane):
    world = make_world()
    plane = make_plane(seed=1)
    big = plane.submit(world, run_spec(steps=40, rollout__prompts_per_batch=12, rollout__max_staleness=3))
    plane.play(until=lambda: len(plane.rollouts) >= 12)
    for number in range(12):
        plane.now += timedelta(seconds=10)
        report_slow(plane, waited=10.0 * number)
    small = plane.submit(world, run_spec(steps=40, rollout__prompts_per_batch=2))
    plane.play(max_events=plane.events + 60, until=lambda: Group.objects.filter(run=small, dispatch=1).exists())
    assert Group.objects.filter(run=small, state=GroupState.RUNNING).count() == 1
    assert Group.objects.filter(run=big, state=GroupState.PENDING).exists()


def report_slow(plane, *, waited, run_id=""):
    job = next((job for job in plane.rollouts if not run_id or job.run_id == run_id), None)
    if job is None:
        return
    plane.rollouts.remove(job)
    plane.report_group(job)
    report = plane.inbox.pop()
    group = Group.objects.get(pk=job.group_id)
    started = group.dispatched_at + timedelta(seconds=waited)
    report.body["started_at"] = started.timestamp()
    report.body["finished_at"] = (started + timedelta(seconds=10)).timestamp()
    plane.ingest(report)
    while plane.advances:
        plane._advance()


def test_the_long_tail_is_told_by_task(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=5))
    held = hold_one(plane, run)
    trained(plane, run)
    client = APIClient()
    client.force_authenticate(world.users["viewer"])
    body = client.get(f"/api/v1/runs/{run.id}/long-tail/").json()
    assert body["num_groups"] == Group.objects.filter(run=run).count()
    left = Group.objects.get(pk=held.group_id)
    cost = next(cost for cost in body["tasks"] if cost["task_id"] == str(left.task_id))
    assert (cost["key"], cost["num_cancelled"]) == (left.task.key, 1)
    assert cost["cancelled_seconds"] == pytest.approx(left.cancelled_seconds)
    assert body["total_seconds"] == pytest.approx(
        body["retry_seconds"] + body["cancelled_seconds"] + sum(cost["seconds"] for cost in body["tasks"])
    )
    assert 0 < body["slowest_seconds"] < body["total_seconds"]
    stranger = APIClient()
    stranger.force_authenticate(make_world(slug="elsewhere").users["admin"])
    assert stranger.get(f"/api/v1/runs/{run.id}/long-tail/").status_code == 404
