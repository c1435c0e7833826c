"""Runs under failure: the ledger adds up at every moment, no group trains twice, checkpoints and database agree."""

import pytest

from apps.runs import selectors
from apps.runs.models import Batch, BatchState, Checkpoint, Group, IngestedReport, RunAttempt, RunState
from tests.support.worlds import run_spec

CHAOS = {
    "infrastructure_error": 0.1,
    "engine_error": 0.03,
    "lost_rollout": 0.05,
    "zero_variance": 0.15,
    "duplicate": 0.2,
    "resent": 0.1,
    "reorder": 0.4,
    "trainer_crash": 0.06,
    "silent_crash": 0.06,
    "zombie": 0.5,
    "fleet_refusal": 0.1,
    "slow_rollout": 0.1,
}
LENIENT = {"limits__max_attempts": 50, "limits__max_error_share": 1.0, "rollout__max_attempts": 5}


def check_invariants(run):
    """What must hold after every single event."""
    run.refresh_from_db()
    ledger = selectors.ledger(run)
    assert ledger.adds_up, ledger
    bound = run.spec["rollout"]["max_staleness"]
    trained = Group.objects.filter(run=run, outcome="trained")
    assert not trained.filter(age__gt=bound).exists()
    batches = list(Batch.objects.filter(run=run).exclude(state=BatchState.ABANDONED).order_by("index"))
    assert [batch.index for batch in batches] == list(range(len(batches)))
    for checkpoint in Checkpoint.objects.filter(run=run):
        assert checkpoint.batch_ids == [str(batch.id) for batch in batches[: checkpoint.version]]
    assert RunAttempt.objects.filter(run=run).exclude(state="ended").count() <= 1
    assert run.version <= run.total_steps


@pytest.mark.parametrize("seed", range(3))
def test_a_run_survives_everything(world, make_plane, seed):
    plane = make_plane(seed=seed, **CHAOS)
    run = plane.submit(world, run_spec(steps=5, rollout__max_staleness=seed % 3, **LENIENT))
    for _ in range(40):
        plane.play(max_events=plane.events + 40, until=lambda: _state(run) == RunState.TRAINED)
        check_invariants(run)
        if run.state == RunState.TRAINED:
            break
    assert run.state == RunState.TRAINED, (run.state, run.status_code, run.status_message)
    assert Group.objects.filter(run=run, outcome="trained").count() == 10
    plane.play(max_events=plane.events + 300)  # what zombies still have to say
    check_invariants(run)
    winner = Checkpoint.objects.get(run=run, version=5)
    assert len(set(winner.batch_ids)) == 5


def test_what_arrives_twice_is_stored_once(world, make_plane):
    plane = make_plane(seed=3, duplicate=1.0)
    run = plane.submit(world, run_spec())
    plane.play(max_events=600, until=lambda: _state(run) == RunState.TRAINED)
    assert plane.answers.count("duplicate") > 10
    assert Group.objects.filter(run=run, outcome="trained").count() == 8
    for group in Group.objects.filter(run=run, outcome="trained"):
        assert group.episodes.count() == group.size


def test_a_zombie_is_refused_and_counted(world, make_plane):
    plane = make_plane(seed=1)
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: _version(run) >= 1)
    zombie = plane.trainers[0]
    zombie.started = False  # no heartbeat any more, but it lives
    plane.pass_time(60)
    assert _version(run) < 4
    plane.play(until=lambda: _state(run) == RunState.TRAINED)
    refused = IngestedReport.objects.filter(run_id=run.id).exclude(refused="")
    assert {row.refused for row in refused} <= {"dead attempt 1"}
    assert set(RunAttempt.objects.filter(run=run).values_list("number", "state")) == {(1, "ended"), (2, "ended")}
    check_invariants(run)


def _state(run):
    run.refresh_from_db()
    return run.state


def _version(run):
    run.refresh_from_db()
    return run.version
