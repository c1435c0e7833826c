"""Stop rules: a run halts with the reason and the last good checkpoint, or goes on."""

import math
from datetime import timedelta

import pytest

from apps.runs import selectors, services
from apps.runs.models import Group, Run, RunAttempt, RunState
from apps.runs.scheduling.halting import Halt
from gpu_workers.contracts.messages import TrainerFailed, TrainJob
from tests.support.scripted import commit
from tests.support.worlds import run_spec


def fresh(run) -> Run:
    return Run.objects.get(pk=run.pk)


def play(plane, run, *states):
    plane.play(until=lambda: fresh(run).state in states)
    assert selectors.ledger(run).adds_up
    return fresh(run)


@pytest.mark.parametrize(
    ("metric", "value", "code", "words"),
    [
        ("train/kl_behaviour_k3", 2.5, "mismatch", "KL k3"),
        ("train/kl_behaviour_k3", math.nan, "mismatch", "nan"),
        ("train/effective_sample_size", 0.01, "sample_size", "0.01"),
        ("train/entropy", 1e-6, "entropy_low", "collapsed"),
        ("train/grad_norm", 1e6, "grad_norm", "diverges"),
        ("train/skipped_updates", 1.0, "non_finite", "NaN or infinity"),
    ],
)
def test_a_number_out_of_bounds_step_after_step_halts_the_run(world, make_plane, metric, value, code, words):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=12))
    plane.play(until=lambda: fresh(run).version >= 2)
    good = fresh(run).version
    plane.metrics = {metric: value}
    run = play(plane, run, RunState.HALTED, RunState.TRAINED)
    assert (run.state, run.status_code) == (RunState.HALTED, code)
    assert words in run.status_message
    assert good <= run.last_good_version <= good + 1  # a step that was under way counted as good
    assert run.status_message.endswith(f"Last good checkpoint: version {run.last_good_version}.")
    assert run.version < 12
    assert RunAttempt.objects.filter(run=run).exclude(state="ended").count() == 0


def test_a_single_bad_step_halts_nothing(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=6))
    plane.play(until=lambda: fresh(run).version >= 2)
    plane.metrics = {"train/grad_norm": 1e9}
    plane.play(until=lambda: fresh(run).version >= 3)
    plane.metrics = {}
    assert play(plane, run, RunState.HALTED, RunState.TRAINED).state == RunState.TRAINED


def test_batches_without_a_usable_group_are_no_sign_of_a_broken_model(world, make_plane):
    plane = make_plane(seed=1)
    plane.metrics = {"train/skipped_updates": 1.0, "train/num_sampled_tokens": 0.0}
    run = plane.submit(world, run_spec(steps=6))
    assert play(plane, run, RunState.HALTED, RunState.TRAINED).state == RunState.TRAINED


def test_rules_are_the_specs_and_can_be_turned_off(world, make_plane):
    plane = make_plane(seed=1)
    plane.metrics = {"train/grad_norm": 50.0, "train/entropy": 3.0}
    strict = plane.submit(world, run_spec(steps=6, health__max_entropy=2.5, health__window=1))
    assert play(plane, strict, RunState.HALTED, RunState.TRAINED).status_code == "entropy_high"
    plane.metrics = {"train/grad_norm": 1e9}
    lenient = plane.submit(world, run_spec(steps=6, health__max_grad_norm=0))
    assert play(plane, lenient, RunState.HALTED, RunState.TRAINED).state == RunState.TRAINED


def test_too_few_groups_with_a_signal_halt_at_the_share_that_the_spec_says(world, make_plane):
    plane = make_plane(seed=1, zero_variance=0.9)
    run = plane.submit(world, run_spec(steps=50, health__max_zero_variance_share=0.7))
    run = play(plane, run, RunState.HALTED, RunState.TRAINED)
    assert run.status_code == "no_signal"
    assert "limit 70%" in run.status_message


def test_a_run_in_which_nothing_finishes_halts_and_a_paused_one_does_not(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=6, rollout__group_timeout_seconds=80_000, health__stall_seconds=600))
    plane.play(until=lambda: fresh(run).version >= 1)
    plane.rollouts.clear()  # the workers take groups and are never heard of again
    plane.chaos.lost_rollout = 1.0
    with commit():
        services.pause_run(run=run, by=world.engineer)
    for _ in range(80):
        plane.pass_time(15)
        plane.play(max_events=plane.events + 3)
    assert fresh(run).state == RunState.PAUSED
    with commit():
        services.resume_run(run=run, by=world.engineer)
    plane.play(max_events=plane.events + 30)
    assert fresh(run).state == RunState.RUNNING
    run = play(plane, run, RunState.HALTED)
    assert run.status_code == "stall"
    assert "limit 600 s" in run.status_message
    assert run.last_good_version == run.version


def test_a_run_whose_next_trainer_waits_for_a_free_worker_is_not_stalled(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=6, health__stall_seconds=600))
    plane.play(until=lambda: fresh(run).version >= 2)
    plane.trainers[-1].dead = True
    held: list[TrainJob] = []  # jobs in the queue: the only train worker has another run's trainer
    for _ in range(160):
        plane.play(max_events=plane.events + 5)
        plane.pass_time(15)
        held += plane.trains
        plane.trains.clear()
    assert (fresh(run).state, fresh(run).status_code) == (RunState.RUNNING, "waiting_for_trainer")
    assert len(held) > 1
    plane.trains.append(held[-1])
    run = play(plane, run, RunState.TRAINED, RunState.HALTED)
    assert (run.state, run.version) == (RunState.TRAINED, 6)


def test_a_trainer_that_gives_up_on_nan_halts_the_run(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=6))
    plane.play(until=lambda: fresh(run).version >= 4)
    job = plane.trainers[0].job
    body = TrainerFailed(code="non_finite_gradients", message="3 updates in a row were refused", retryable=False)
    plane.send("trainer_failed", body, run_id=job.run_id, attempt=job.attempt, token=job.token)
    run = play(plane, run, RunState.HALTED, RunState.TRAINED, RunState.FAILED)
    assert (run.state, run.status_code) == (RunState.HALTED, "non_finite_gradients")
    assert run.last_good_version == run.step - 3


def test_apps_above_halt_runs_through_the_same_engine(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(steps=6))
    plane.play(until=lambda: fresh(run).version >= 3)
    with commit():
        services.halt_run(fresh(run), Halt("verifier_disagreement", "Reviewers disagree too often.", since_step=3))
    run = fresh(run)
    assert (run.state, run.status_code, run.last_good_version) == (RunState.HALTED, "verifier_disagreement", 2)
    assert not Group.objects.filter(run=run, state__in=["pending", "running", "ready", "batched"]).exists()
    plane.now += timedelta(hours=1)
    assert play(plane, run, RunState.HALTED).status_code == "verifier_disagreement"
