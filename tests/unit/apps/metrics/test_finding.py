"""The headline of a run's page: what the numbers say, and never more than that."""

import pytest

from apps.metrics.finding import Facts, headline, lead, trend
from apps.runs.models import RunState


def reward(version, mean, half=0.05, n=64):
    return {"version": version, "mean": mean, "low": mean - half, "high": mean + half, "n": n}


def facts(**changes):
    values = {"state": RunState.RUNNING, "step": 9, "total_steps": 12, "message": "", **changes}
    return Facts(**values)


@pytest.mark.parametrize(
    ("first", "newest", "expected"),
    [
        (reward(0, 0.40), reward(8, 0.58), 1),
        (reward(0, 0.58), reward(8, 0.40), -1),
        (reward(0, 0.40), reward(8, 0.45), 0),  # within the combined half-widths
        (reward(0, 0.40), reward(0, 0.90), 0),  # one version is no trend
        (reward(0, 0.40), {**reward(8, 0.90), "low": None}, 0),  # one group has no interval
        (None, reward(8, 0.9), 0),
    ],
)
def test_a_trend_needs_intervals_that_exclude_no_change(first, newest, expected):
    assert trend(first, newest) == expected


def test_the_headline_follows_the_trend_and_the_state():
    rising = {"first": reward(0, 0.40), "newest": reward(8, 0.58)}
    assert headline(facts(**rising)) == "Learning, at step 9 of 12"
    assert headline(facts(first=reward(0, 0.58), newest=reward(8, 0.4))) == "Reward is falling, at step 9 of 12"
    assert headline(facts(first=reward(0, 0.4), newest=reward(8, 0.42))).startswith("No clear change in reward yet")
    assert headline(facts(state=RunState.SUCCEEDED, **rising)) == "Learned: reward rose from .40 to .58 in 9 steps"
    assert headline(facts(state=RunState.HALTED, **rising)) == "Stopped itself at step 9 of 12"
    assert headline(facts(state=RunState.QUEUED, step=0, total_steps=0)) == "Waiting for its turn"
    assert headline(facts(newest=None)) == "Starting: the first episodes are being generated"


def test_a_supervised_run_speaks_of_its_loss_only_when_enough_steps_agree():
    falling = (2.0, 1.9, 2.1, 2.0, 1.2, 1.1, 1.3, 1.2)
    assert headline(facts(supervised=True, losses=falling)) == "Loss is falling, at step 9 of 12"
    assert headline(facts(supervised=True, losses=falling[::-1])) == "Loss is rising, at step 9 of 12"
    assert headline(facts(supervised=True, losses=(0.08, 0.25, 0.1, 0.2, 0.3, 0.05, 0.1, 0.2))).startswith("Training,")
    assert headline(facts(supervised=True, losses=(2.0, 1.0))).startswith("Training,")
    assert "from 2.000 to 1.200 nats per token (means of 4 steps each)" in lead(facts(supervised=True, losses=falling))
    assert headline(facts(supervised=True)) == "Starting: the trainer loads"


def test_the_lead_names_what_was_lost_and_why_a_run_stopped():
    closed = {"trained": 72, "zero_variance": 24, "stale": 3, "infrastructure_failed": 1}
    text = lead(facts(newest=reward(8, 0.5), first=reward(0, 0.4), ledger={"closed": closed}))
    assert "Reward went from .40 to .50 between versions 0 and 8 (n = 64 and 64 episodes)." in text
    assert "24 of 100 closed groups carried no signal (24%)." in text
    assert "3 came too late" in text
    assert "1 failed by infrastructure and were not scored" in text
    halted = facts(state=RunState.HALTED, message="12 of the last 20 groups failed.")
    assert lead(halted) == "12 of the last 20 groups failed."


def test_the_lead_says_where_the_time_went():
    seconds = {"engine": 60.0, "tool": 30.0, "verifier": 0.0, "queue": 10.0, "trainer": 500.0}
    assert "Of the episodes' time, 60% went to the engine." in lead(facts(seconds=seconds))
    assert lead(facts()) == "No data yet."
