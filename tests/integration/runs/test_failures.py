"""One failure at a time: what the run does about it, and what it says."""

from datetime import timedelta

import pytest

from apps.runs import selectors
from apps.runs.models import (
    Batch,
    BatchState,
    Episode,
    FleetInstall,
    Group,
    GroupState,
    IngestedReport,
    Run,
    RunAttempt,
    RunState,
)
from apps.runs.services import cancel_run
from gpu_workers.contracts.enums import Verdict
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import Heartbeat, TrainerFailed, TrainerStarted
from tests.support.scripted import commit, episode
from tests.support.worlds import make_world, run_spec


def fresh(run) -> Run:
    return Run.objects.get(pk=run.pk)


def codes(run) -> list[str]:
    return list(run.events.order_by("id").values_list("code", flat=True))


def until_trained(plane, run):
    plane.play(until=lambda: fresh(run).state == RunState.TRAINED)
    assert fresh(run).state == RunState.TRAINED
    assert selectors.ledger(run).adds_up


# -- the trainer


def test_a_durable_but_unreported_version_is_taken_over(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: fresh(run).version >= 1)
    plane.chaos.silent_crash = 1.0  # the next step is made durable, and nobody hears of it
    plane.play(until=lambda: plane.trainers[0].dead)
    durable = plane.trainers[0].version
    assert durable > fresh(run).version
    plane.chaos.silent_crash = 0.0
    plane.pass_time(60)
    until_trained(plane, run)
    assert "checkpoint_adopted" in codes(run)
    second = RunAttempt.objects.get(run=run, number=2)
    assert second.resumed_version == durable
    adopted = run.checkpoints.get(version=durable)
    assert adopted.attempt == 1
    assert adopted.batch_ids == [str(b.id) for b in Batch.objects.filter(run=run).order_by("index")[:durable]]
    assert Group.objects.filter(run=run, outcome="trained").count() == 8


def test_every_durable_version_is_taken_over_not_the_newest_alone(world, make_plane, monkeypatch):
    plane = make_plane(seed=2)
    run = plane.submit(world, run_spec(rollout__max_staleness=2))
    plane.play(until=lambda: Batch.objects.filter(run=run, state=BatchState.SENT).count() >= 2)
    send = plane.send
    with monkeypatch.context() as patch:  # what it says of its steps arrives too late: its lease has ended
        patch.setattr(plane, "send", lambda kind, *args, **more: None if kind == "step" else send(kind, *args, **more))
        plane.play(until=lambda: plane.trainers[0].version >= fresh(run).version + 2)
    plane.trainers[0].dead = True
    plane.pass_time(60)
    until_trained(plane, run)
    ids = [str(batch.id) for batch in Batch.objects.filter(run=run).order_by("index")]
    stored = run.checkpoints.order_by("version").values_list("version", "batch_ids")
    assert list(stored) == [(version, ids[:version]) for version in range(1, len(ids) + 1)]
    assert codes(run).count("checkpoint_adopted") >= 2


def test_a_report_that_is_overtaken_and_comes_late_or_never(world, make_plane, monkeypatch):
    """Of version 1 it comes after the end, of version 2 never: both are there, and version 1 with its numbers."""
    plane = make_plane(seed=2)
    run = plane.submit(world, run_spec(rollout__max_staleness=2))
    send, held = plane.send, []

    def lose(kind, body, **options):
        if kind == "step" and body.version <= 2:
            held.append((kind, body, options))
        else:
            send(kind, body, **options)

    monkeypatch.setattr(plane, "send", lose)
    until_trained(plane, run)
    assert [version for (version,) in run.checkpoints.order_by("version").values_list("version")] == [1, 2, 3, 4]
    assert codes(run).count("checkpoint_adopted") == 2
    kind, body, options = held[0]
    send(kind, body, **options)
    send(kind, body, **{**options, "report_id": "again"})
    plane.play(until=lambda: not plane.inbox)
    assert set(run.steps.values_list("number", flat=True)) == {1, 3, 4}
    assert run.checkpoints.count() == 4


def test_batches_the_checkpoint_lacks_are_sent_again_in_order(world, make_plane):
    plane = make_plane(seed=2)
    run = plane.submit(world, run_spec(rollout__max_staleness=2))
    plane.play(until=lambda: Batch.objects.filter(run=run, state=BatchState.SENT).count() >= 2)
    plane.trainers[0].dead = True
    last = Batch.objects.filter(run=run).count()
    plane.pass_time(60)
    plane.play(until=lambda: len(plane.trainers) == 2 and not plane.inbox)
    resumed = plane.trainers[1].version  # what was durable already is not sent again
    indices = [message["index"] for message in plane.queues[f"batches.{run.id}.2"] if "index" in message]
    assert resumed < last
    assert indices[: last - resumed] == list(range(resumed, last))
    until_trained(plane, run)


def test_a_checkpoint_of_other_batches_fails_the_run(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: RunAttempt.objects.filter(run=run).exists() and bool(plane.trains))
    job = plane.trains.popleft()
    plane.send(
        "trainer_started", TrainerStarted(resumed_version=1, batch_ids=["not-ours"]), run_id=job.run_id,
        attempt=job.attempt, token=job.token,
    )  # fmt: skip
    plane.play(until=lambda: not plane.inbox)
    assert fresh(run).status_code == "checkpoint_mismatch"


def test_trainer_attempts_are_bounded(world, make_plane):
    plane = make_plane(start_crash=1.0)
    run = plane.submit(world, run_spec(limits__max_attempts=2))
    plane.play(until=lambda: fresh(run).state == RunState.FAILED)
    assert fresh(run).status_code == "trainer_attempts"
    assert "killed: signal 9" in fresh(run).status_message
    assert RunAttempt.objects.filter(run=run).count() == 2


def test_attempts_that_make_progress_are_not_bounded(world, make_plane):
    plane = make_plane(trainer_crash=1.0)
    run = plane.submit(world, run_spec(limits__max_attempts=2))
    until_trained(plane, run)
    assert RunAttempt.objects.filter(run=run).count() >= 4
    assert Group.objects.filter(run=run, outcome="trained").count() == 8


def test_a_hopeless_failure_is_not_tried_again(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.trainers))
    job = plane.trainers[0].job
    body = TrainerFailed(code="unknown_model", message="models/tiny is missing", retryable=False)
    plane.send("trainer_failed", body, run_id=job.run_id, attempt=job.attempt, token=job.token)
    plane.play(until=lambda: fresh(run).state == RunState.FAILED)
    assert (fresh(run).status_code, fresh(run).status_message) == ("unknown_model", "models/tiny is missing")


def test_a_job_that_nobody_takes_up_is_sent_again_without_counting(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec(limits__max_attempts=1))
    plane.play(until=lambda: bool(plane.trains))
    plane.trains.clear()  # the broker has lost it
    assert fresh(run).status_code == "waiting_for_trainer"
    plane.pass_time(16 * 60)
    until_trained(plane, run)
    assert RunAttempt.objects.filter(run=run).count() == 2


def test_a_lost_batch_message_is_sent_again(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    queue = f"batches.{run.id}.1"
    plane.play(until=lambda: bool(plane.queues[queue]))
    plane.queues[queue].clear()
    until_trained(plane, run)
    assert "batch_resent" in codes(run)


def test_a_lost_trainer_job_is_sent_anew_within_a_minute(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.trains))
    lost = plane.trains.popleft()  # it left the queue, and nobody took it up
    for _ in range(5):
        plane.pass_time(12)
    until_trained(plane, run)
    first, second = RunAttempt.objects.filter(run=run).order_by("number")
    assert first.started_at is None
    assert first.ended_reason == "its job left the queue and no trainer gave a sign of it for 45 s"
    assert second.token != lost.token
    assert second.created_at - first.created_at < timedelta(seconds=75)


def test_a_trainer_job_that_waits_in_the_queue_is_not_taken_for_lost(world, make_plane):
    """Two jobs, the older one gone from the queue: only that one is missed."""
    plane = make_plane()
    plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.trains))
    plane.trains.popleft()
    plane.now += timedelta(seconds=1)
    waiting = plane.submit(world, run_spec(seed=2))
    plane.play(until=lambda: bool(plane.trains))
    for _ in range(20):
        plane.pass_time(30)
    assert RunAttempt.objects.filter(run=waiting).count() == 1  # ten minutes behind other trainers
    assert RunAttempt.objects.get(run=waiting).state == "sent"


def test_only_the_current_token_extends_a_lease(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.trainers))
    attempt = RunAttempt.objects.get(run=run)
    from apps.runs import jobs

    forged = Heartbeat(run_id=str(run.id), attempt=1, token=attempt.token + 1)
    assert jobs.heartbeat(jsonable(forged)) is False
    assert jobs.heartbeat({"run_id": "nonsense", "attempt": 1, "token": 1}) is False
    plane.now += timedelta(seconds=20)
    real = Heartbeat(run_id=str(run.id), attempt=1, token=attempt.token, cpu_seconds=7)
    assert jobs.heartbeat(jsonable(real)) is True
    attempt.refresh_from_db()
    assert attempt.lease_expires_at > plane.now + timedelta(seconds=30)
    assert attempt.cpu_seconds == 7


# -- engines and rollouts


def test_engines_that_are_down_are_named_and_end_the_run(world, make_plane):
    plane = make_plane(fleet_refusal=1.0)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: fresh(run).status_code == "engine_down")
    assert fresh(run).state == RunState.STARTING
    assert "engine http://127.0.0.1:1 is down" in fresh(run).status_message
    plane.play(until=lambda: fresh(run).state == RunState.HALTED)
    assert fresh(run).status_code == "engine_down"
    assert FleetInstall.objects.filter(run=run).latest("created_at").tries > 5


def test_an_engine_that_comes_back_lets_the_run_go_on(world, make_plane):
    plane = make_plane(fleet_refusal=1.0)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: fresh(run).status_code == "engine_down")
    plane.chaos.fleet_refusal = 0.0
    until_trained(plane, run)
    assert fresh(run).status_code == ""


def test_an_engine_failure_reloads_adapters_before_the_group_goes_out_again(db, make_plane):
    world = make_world(adapter=True)
    plane = make_plane()
    plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.rollouts))
    job = plane.rollouts.popleft()
    plane.adapters.clear()
    plane.report_failure(job, "engine", "connection refused")
    plane.play(until=lambda: job.group_id in {j.group_id for j in plane.rollouts})
    again = next(j for j in plane.rollouts if j.group_id == job.group_id)
    assert again.attempt == 2
    assert again.policy.adapter in plane.adapters
    assert plane.wrong_adapters == []


def test_a_failed_group_is_tried_so_often_and_then_closed(world, make_plane):
    plane = make_plane(infrastructure_error=1.0)
    run = plane.submit(world, run_spec(limits__max_error_share=1.0, rollout__max_attempts=2))
    closed = Group.objects.filter(run=run, outcome="infrastructure_failed")
    plane.play(until=lambda: closed.exists())
    group = closed.first()
    assert group is not None
    assert group.dispatch == 2
    assert "no sandbox could start (tried 2 times)" in group.outcome_reason
    assert group.boundary == "infrastructure"
    assert not Episode.objects.filter(group=group).exists()  # never a reward of 0


def test_too_many_failures_halt_the_run(world, make_plane):
    plane = make_plane(infrastructure_error=1.0)
    run = plane.submit(world, run_spec(rollout__max_attempts=1))
    plane.play(until=lambda: fresh(run).state == RunState.HALTED)
    assert fresh(run).status_code == "error_share"
    assert "no sandbox could start" in fresh(run).status_message
    assert selectors.ledger(run).adds_up


def test_groups_that_are_all_rejected_halt_the_run(world, make_plane):
    plane = make_plane()
    report = plane.report_group
    plane.report_group = lambda job: report(job, [0.0, 1.0, 1.0, 0.0, 1.0])  # one episode more than was asked for
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: fresh(run).state == RunState.HALTED)
    assert fresh(run).status_code == "error_share"
    assert "the report holds 5 episodes, 4 were asked for" in fresh(run).status_message
    assert selectors.ledger(run).adds_up


def test_no_spread_of_reward_for_long_halts_the_run(world, make_plane):
    plane = make_plane(zero_variance=1.0)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: fresh(run).state == RunState.HALTED)
    assert fresh(run).status_code == "no_signal"


def test_the_time_limit_halts_the_run(world, make_plane):
    plane = make_plane(lost_rollout=1.0)
    run = plane.submit(world, run_spec(limits__max_seconds=100))
    plane.play(until=lambda: fresh(run).state == RunState.HALTED)
    assert fresh(run).status_code == "max_seconds"


def test_a_dead_workers_group_is_sent_again_and_the_first_result_wins(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.rollouts))
    first = plane.rollouts.popleft()
    plane.pass_time(320)
    plane.play(until=lambda: any(job.group_id == first.group_id for job in plane.rollouts))
    plane.report_group(first)  # it was only slow
    late = plane.inbox.pop()
    assert plane.ingest(late) == "stored"
    second = next(job for job in plane.rollouts if job.group_id == first.group_id)
    plane.report_group(second)
    assert "already" in plane.ingest(plane.inbox.pop())
    assert Group.objects.get(pk=first.group_id).episodes.count() == 4
    until_trained(plane, run)


def test_a_failure_of_an_old_dispatch_does_not_count(world, make_plane):
    plane = make_plane()
    plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.rollouts))
    first = plane.rollouts.popleft()
    plane.pass_time(320)
    plane.play(until=lambda: any(job.group_id == first.group_id for job in plane.rollouts))
    plane.report_failure(first, "infrastructure", "late")
    assert "2 is the current one" in plane.ingest(plane.inbox.pop())
    assert Group.objects.get(pk=first.group_id).state == GroupState.RUNNING


def test_stale_tasks_come_again_a_bounded_number_of_times(world, make_plane):
    plane = make_plane(seed=2, slow_rollout=0.5)
    run = plane.submit(world, run_spec(steps=4, rollout__max_requeues=1))
    until_trained(plane, run)
    stale = Group.objects.filter(run=run, outcome="stale")
    assert stale.exists()
    assert all(group.requeues.count() <= 1 for group in stale)
    assert Group.objects.filter(run=run, requeue_number__gt=0).exists()
    assert not Group.objects.filter(run=run, requeue_number__gt=1).exists()
    assert {drop.num_stale for drop in selectors.stale_tasks(run)} <= {1, 2, 3}


# -- bad reports


@pytest.fixture
def waiting(world, make_plane):
    """A plane with one group at a rollout worker, and its job."""
    plane = make_plane()
    plane.submit(world, run_spec())
    plane.play(until=lambda: bool(plane.rollouts))
    return plane, plane.rollouts.popleft()


def _deliver(plane, job, episodes):
    plane.report_group(job)
    report = plane.inbox.pop()
    report.body["episodes"] = [jsonable(record) for record in episodes]
    return plane.ingest(report), Group.objects.get(pk=job.group_id)


def test_a_reward_that_is_no_number_rejects_the_group(waiting):
    plane, job = waiting
    records = [episode(0, 0.0), episode(1, 1.0), episode(2, 1.0), episode(3, float("nan"), verdict=Verdict.FAIL)]
    said, group = _deliver(plane, job, records)
    assert said == "stored"
    assert group.outcome == "rejected"
    assert "episode 3" in group.outcome_reason
    assert group.episodes.get(index=3).reward is None


def test_a_log_prob_that_is_no_number_rejects_the_group(waiting):
    plane, job = waiting
    records = [episode(i, float(i % 2), mean_logprob=float("nan")) for i in range(4)]
    _, group = _deliver(plane, job, records)
    assert group.outcome == "rejected"
    assert "mean_logprob" in group.outcome_reason


def test_nul_and_lone_surrogates_are_stored(waiting):
    plane, job = waiting
    records = [episode(i, float(i % 2), answer="a\x00b", evidence={"k\x00": ["\x00"]}) for i in range(4)]
    _, group = _deliver(plane, job, records)
    assert group.episodes.get(index=0).answer == "a�b"
    assert group.episodes.get(index=0).evidence == {"k�": ["�"]}


def test_malformed_reports_are_kept_with_the_reason(waiting):
    _plane, _ = waiting
    from apps.runs.jobs import ingest_report

    assert "malformed envelope" in ingest_report({"report_id": "x1", "kind": "group"})
    assert "unknown kind" in ingest_report({"report_id": "x2", "kind": "gossip", "body": {}})
    assert "malformed body" in ingest_report({"report_id": "x3", "kind": "installed", "body": {"job_id": 5}})
    assert "unknown run" in ingest_report({"report_id": "x4", "kind": "step", "body": {}, "run_id": "no uuid"})
    assert "unknown group" in ingest_report({"report_id": "x5", "kind": "group", "body": {"group_id": "1"}})
    rows = dict(IngestedReport.objects.filter(report_id__startswith="x").values_list("report_id", "refused"))
    assert len(rows) == 5
    assert all(rows.values())
    assert ingest_report({"report_id": "x2", "kind": "gossip", "body": {}}) == "duplicate"


# -- ends


def test_cancel_in_mid_run_closes_everything(world, make_plane):
    plane = make_plane(seed=4)
    run = plane.submit(world, run_spec(steps=20))
    plane.play(until=lambda: Batch.objects.filter(run=run, state=BatchState.SENT).exists() and fresh(run).version > 0)
    with commit():
        cancel_run(run=run, by=world.engineer, reason="enough")
    version = fresh(run).version
    assert fresh(run).state == RunState.CANCELLED
    book = selectors.ledger(run)
    assert book.adds_up
    assert book.num_open == 0
    assert book.closed["cancelled"] > 0
    assert not Batch.objects.filter(run=run, state=BatchState.SENT).exists()
    assert plane.queues[f"batches.{run.id}.1"][-1]["cancelled"] is True
    plane.play(max_events=plane.events + 200)  # what was under way comes in and is refused
    assert fresh(run).version == version
    assert selectors.ledger(run) == book
    assert not [name for name in plane.adapters if name.startswith("run-")]


def test_a_supervised_run_builds_its_examples_and_trains(world, make_plane, monkeypatch):
    monkeypatch.setattr("apps.runs.services.datasets.sft_dataset", lambda *args: "objects/dd/examples")
    plane = make_plane()
    run = plane.submit(world, run_spec(algorithm={"kind": "sft"}))
    until_trained(plane, run)
    assert plane.trainers[0].job.dataset == "objects/dd/examples"
    assert (fresh(run).step, fresh(run).total_steps, fresh(run).version) == (3, 3, 3)
    assert list(run.checkpoints.values_list("version", flat=True)) == [3]
    assert not Group.objects.filter(run=run).exists()


def test_a_suite_without_references_cannot_train_supervised(world, make_plane, monkeypatch):
    from ratchet.problems import Problem

    def refuse(*args):
        raise Problem("no_references", 409, "No ready train task has a reference.")

    monkeypatch.setattr("apps.runs.services.datasets.sft_dataset", refuse)
    plane = make_plane()
    run = plane.submit(world, run_spec(algorithm={"kind": "sft"}))
    plane.play(until=lambda: fresh(run).state == RunState.FAILED)
    assert fresh(run).status_code == "no_references"


def test_a_worker_whose_clock_is_ahead_is_held_to_ours(world, make_plane, monkeypatch):
    """Stalls, error shares and capacity are counted by these moments; one far ahead is no date at all."""
    plane = make_plane()
    run = plane.submit(world, run_spec())
    send = plane.send

    def ahead(kind, body, **where):
        if kind == "group" and body.finished_at:
            body.finished_at = 1e20 if int(body.group_id[-1], 16) % 2 else body.finished_at + 86_400
        send(kind, body, **where)

    monkeypatch.setattr(plane, "send", ahead)
    until_trained(plane, run)
    ended = Group.objects.filter(run=run, outcome="trained").values_list("finished_at", flat=True)
    assert max(ended) <= plane.now
