"""Resuming: from an older checkpoint the same bytes again, or a refusal that says why; nothing trains twice."""

import pytest

from apps.runs import selectors
from apps.runs.models import Batch, Group, Run, RunAttempt, RunState
from apps.runs.scheduling.ledger import OPEN_STATES
from tests.support.worlds import run_spec


def fresh(run) -> Run:
    return Run.objects.get(pk=run.pk)


def kill(plane, run, version):
    """The trainer of a run at `version` is gone."""
    plane.play(until=lambda: fresh(run).version >= version)
    plane.trainers[-1].dead = True


def until(plane, run, state):
    plane.play(until=lambda: fresh(run).state == state)
    assert fresh(run).state == state, (fresh(run).status_code, fresh(run).status_message)
    assert selectors.ledger(run).adds_up


def test_a_trainer_behind_the_published_version_computes_it_again(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    kill(plane, run, 3)
    published = dict(run.checkpoints.values_list("version", "sha256"))
    names = [checkpoint.engine_name for checkpoint in run.checkpoints.order_by("version")]
    first = next(iter(plane.checkpoints))
    plane.damaged = set(plane.checkpoints) - {first}  # the newest are torn, only that of version 1 is whole
    plane.pass_time(60)
    until(plane, run, RunState.TRAINED)
    second = RunAttempt.objects.filter(run=run, resumed_version__isnull=False).order_by("number")[1]
    assert second.resumed_version == 1
    assert {version: run.checkpoints.get(version=version).sha256 for version in published} == published
    assert [c.engine_name for c in run.checkpoints.order_by("version")][: len(names)] == names
    assert run.checkpoints.filter(uri__in=plane.damaged).count() == 0  # the folder is the new one
    assert run.events.filter(code="version_replayed").count() == len(published) - 1
    assert Group.objects.filter(run=run, outcome="trained").count() == 8
    assert run.checkpoints.get(version=4).batch_ids == [str(b.id) for b in Batch.objects.order_by("index")]


def test_with_no_checkpoint_left_every_batch_is_computed_again(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec(limits__max_attempts=1))
    kill(plane, run, 2)
    plane.damaged = set(plane.checkpoints)
    plane.pass_time(60)
    until(plane, run, RunState.TRAINED)
    assert RunAttempt.objects.filter(run=run).order_by("-number")[0].resumed_version == 0
    assert Group.objects.filter(run=run, outcome="trained").count() == 8


def test_a_replay_that_gives_other_bytes_is_refused(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    kill(plane, run, 2)
    plane.damaged = set(plane.checkpoints)
    plane.machine = "another"
    plane.pass_time(60)
    until(plane, run, RunState.FAILED)
    assert fresh(run).status_code == "resume_diverged"
    assert "Version 1 computed again by attempt" in fresh(run).status_message
    assert not Group.objects.filter(run=run, state__in=OPEN_STATES).exists()


def test_a_replayed_batch_whose_message_is_lost_is_sent_again(world, make_plane):
    plane = make_plane(seed=3)
    run = plane.submit(world, run_spec())
    kill(plane, run, 2)
    plane.damaged = set(plane.checkpoints)
    plane.pass_time(60)
    plane.play(until=lambda: fresh(run).attempts.filter(resumed_version=0, number__gt=1).exists())
    attempt = fresh(run).attempts.order_by("-number")[0]
    plane.queues[f"batches.{run.id}.{attempt.number}"].clear()
    until(plane, run, RunState.TRAINED)


def test_a_checkpoint_of_other_batches_is_refused_with_their_number(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    kill(plane, run, 1)
    for key in plane.checkpoints:
        plane.checkpoints[key] = ["another database's"]
    plane.pass_time(60)
    until(plane, run, RunState.FAILED)
    assert fresh(run).status_code == "checkpoint_mismatch"


@pytest.mark.parametrize("change", [{"steps": 5}, {"seed": 8}])
def test_a_spec_that_changed_between_attempts_is_refused(world, make_plane, change):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    kill(plane, run, 1)
    Run.objects.filter(pk=run.pk).update(spec=fresh(run).spec | change)
    plane.pass_time(60)
    until(plane, run, RunState.FAILED)
    assert fresh(run).status_code == "spec_changed"
    assert "submit the spec that is wanted as a new run" in fresh(run).status_message
    assert RunAttempt.objects.filter(run=run).count() == 1


def test_a_stored_spec_has_the_hash_it_was_submitted_with(world, make_plane):
    from gpu_workers.contracts.runspec import stored_spec_hash

    odd = run_spec(optimiser__learning_rate=1.1e-7, lora__alpha=3, rollout__temperature=0.1 + 0.2, name="η ≥ 0")
    run = fresh(make_plane().submit(world, odd))
    assert stored_spec_hash(run.spec) == run.spec_hash
