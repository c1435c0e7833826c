"""A run from submission to trained, with nothing going wrong."""

import pytest

from apps.runs import selectors
from apps.runs.models import Batch, BatchState, Group, RunState
from tests.support.worlds import make_world, run_spec


def test_a_run_trains_every_step(world, make_plane):
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: _state(run) == RunState.TRAINED)
    run.refresh_from_db()
    assert (run.state, run.version, run.step) == (RunState.TRAINED, 4, 4)
    assert run.started_at is not None
    batches = list(Batch.objects.filter(run=run).order_by("index"))
    assert [batch.index for batch in batches] == [0, 1, 2, 3]
    assert {batch.state for batch in batches} == {BatchState.TRAINED}
    newest = run.checkpoints.get(version=4)
    assert newest.batch_ids == [str(batch.id) for batch in batches]
    ledger = selectors.ledger(run)
    assert ledger.adds_up
    assert ledger.closed["trained"] == 8
    assert plane.wrong_adapters == []


@pytest.mark.parametrize("bound", [0, 2])
def test_age_never_exceeds_the_bound(world, make_plane, bound):
    plane = make_plane(seed=bound)
    run = plane.submit(world, run_spec(rollout__max_staleness=bound))
    plane.play(until=lambda: _state(run) == RunState.TRAINED)
    ages = Group.objects.filter(run=run, outcome="trained").values_list("age", flat=True)
    assert len(ages) == 8
    assert max(ages) <= bound


def test_a_parents_adapter_is_version_zero(db, make_plane):
    world = make_world(adapter=True)
    plane = make_plane()
    run = plane.submit(world, run_spec())
    plane.play(until=lambda: _state(run) == RunState.TRAINED)
    first = Group.objects.filter(run=run).order_by("number").first()
    assert first is not None
    assert first.policy_adapter == world.policy.engine_name
    assert world.policy.engine_name in plane.adapters
    assert plane.trainers[0].job.parent_checkpoint == "adapters/parent"


def _state(run):
    run.refresh_from_db()
    return run.state
