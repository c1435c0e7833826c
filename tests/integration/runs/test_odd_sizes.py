"""Runs of sizes that nobody would choose end like others, with every group accounted for."""

import pytest

from apps.runs import selectors
from apps.runs.models import Run, RunState
from tests.support.worlds import run_spec

ODD = {
    "one group of one episode": {"algorithm__kind": "ppo", "rollout__prompts_per_batch": 1, "rollout__group_size": 1},
    "one step": {"steps": 1},
    "one group of two, synchronous": {
        "rollout__prompts_per_batch": 1, "rollout__group_size": 2, "rollout__max_staleness": 0,
    },
    "odd numbers": {"steps": 3, "rollout__prompts_per_batch": 5, "rollout__group_size": 3},
    "a bound beyond the run": {"steps": 3, "rollout__max_staleness": 64},
    "twice as many as needed": {"rollout__over_sampling": 1.0, "rollout__max_staleness": 0},
    "more prompts than tasks": {"steps": 2, "rollout__prompts_per_batch": 40},
    "one train task": {"steps": 3, "max_train_tasks": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", list(ODD))
def test_a_run_of_odd_size_trains_every_step(world, make_plane, name):
    plane = make_plane(reorder=0.3, duplicate=0.2)
    spec = run_spec(**ODD[name])
    run = plane.submit(world, spec)
    plane.play(max_events=3000, until=lambda: Run.objects.get(pk=run.pk).state == RunState.TRAINED)
    run.refresh_from_db()
    assert (run.state, run.version) == (RunState.TRAINED, spec["steps"]), run.status_message
    ledger = selectors.ledger(run)
    assert ledger.adds_up
    trained = run.groups.filter(outcome="trained")
    assert trained.count() == spec["steps"] * spec["rollout"]["prompts_per_batch"]
    bound = spec["rollout"]["max_staleness"]
    assert not trained.filter(age__gt=bound).exists()
