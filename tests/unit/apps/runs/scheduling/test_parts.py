"""Each pure decision by itself, at its boundaries."""

from uuid import UUID

import pytest

from apps.runs.scheduling import admission, arrival, batching, halting, ledger, order, staleness
from apps.runs.scheduling.arrival import ArrivedEpisode, judge_arrival
from gpu_workers.contracts.enums import GroupOutcome


def group(number, version):
    return batching.ReadyGroup(UUID(int=number), number, version)


def plan(ready, **changes):
    options = {"next_index": 0, "num_steps": 10, "batch_size": 2, "max_staleness": 1} | changes
    return batching.plan_batches(ready, **options)


def test_age_at_the_bound_trains_and_one_more_does_not():
    assert not staleness.is_stale(5, 4, 1)
    assert staleness.is_stale(5, 3, 1)
    with pytest.raises(staleness.NegativeAge):
        staleness.age(3, 4)


def test_oldest_samples_go_first_and_too_old_ones_are_dropped():
    made = plan([group(1, 3), group(2, 2), group(3, 1), group(4, 3)], next_index=3)
    assert [g.number for g in made.stale] == [3]
    assert [(m.id.int, m.age) for m in made.batches[0].members] == [(2, 1), (1, 0)]
    assert len(made.batches) == 1


def test_the_next_batch_may_be_too_late_for_a_group():
    made = plan([group(1, 0), group(2, 0), group(3, 0)], max_staleness=0)
    assert [batch.index for batch in made.batches] == [0]
    assert [g.number for g in made.stale] == [3]


def test_no_batch_beyond_the_last_step():
    made = plan([group(n, 0) for n in range(1, 7)], num_steps=1)
    assert len(made.batches) == 1
    assert made.stale == []


def demand(**changes):
    values = {
        "batch_size": 4, "num_steps": 10, "max_staleness": 1, "confirmed_version": 0, "num_batches": 0, "num_ready": 0,
        "num_unfinished": 0,
    }  # fmt: skip
    return admission.Demand(**(values | changes))


def test_room_follows_areals_rule():
    assert admission.room(demand()) == 8  # (1 + 0 + 1) · 4
    assert admission.room(demand(num_batches=1, num_ready=1, num_unfinished=2)) == 1
    assert admission.room(demand(confirmed_version=2, num_batches=3)) == 4
    assert admission.room(demand(confirmed_version=-1)) == 0
    assert admission.room(demand(num_unfinished=20)) == 0
    assert admission.room(demand(confirmed_version=9, num_batches=9)) == 4  # the last step needs no more


def test_every_epoch_is_a_permutation_of_its_own():
    epochs = [[order.task_index(e * 20 + i, 20, seed=3) for i in range(20)] for e in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] == [order.task_index(i, 20, seed=3) for i in range(20)]
    assert epochs[0] != [order.task_index(i, 20, seed=4) for i in range(20)]
    assert order.group_seed(1, 1) != order.group_seed(1, 2)
    assert 0 <= order.group_seed(1, 1) < 2**31


def arrive(*rewards, size=None, newest=3, versions=(1, 2), tokens=5, **use):
    episodes = [ArrivedEpisode(reward, *versions, tokens) for reward in rewards]
    return judge_arrival(episodes, size=len(rewards) if size is None else size, newest_version=newest, **use)


def test_a_group_with_spread_is_ready():
    judged = arrive(0.0, 1.0, 1.0, None)
    assert judged.outcome is None
    assert (judged.num_scored, judged.min_version, judged.max_version) == (3, 1, 2)
    assert judged.reward_mean == pytest.approx(2 / 3)
    assert judged.reward_std == pytest.approx((1 / 3) ** 0.5)  # Bessel


@pytest.mark.parametrize(
    ("judged", "outcome", "words"),
    [
        (arrive(1.0, 1.0), GroupOutcome.ZERO_VARIANCE, "equal"),
        (arrive(0.1 + 0.2, 0.3), GroupOutcome.ZERO_VARIANCE, "equal"),
        (arrive(1.0, None), GroupOutcome.INFRASTRUCTURE_FAILED, "1 of 2"),
        (arrive(0.0, 1.0, size=3), GroupOutcome.REJECTED, "3 were asked"),
        (arrive(0.0, float("nan")), GroupOutcome.REJECTED, "nan"),
        (arrive(0.0, 1.0, newest=1), GroupOutcome.REJECTED, "newest is 1"),
        (arrive(0.0, 1.0, versions=(-1, 0)), GroupOutcome.REJECTED, "-1 to 0"),
    ],
)
def test_what_cannot_be_trained_on_is_dropped_with_a_reason(judged, outcome, words):
    assert judged.outcome is outcome
    assert words in judged.reason


def test_what_does_not_compare_siblings_can_use_equal_rewards_and_a_single_one():
    use = {"least_scored": 1, "drops_zero_variance": False}
    assert arrive(1.0, 1.0, **use).outcome is None
    assert arrive(1.0, None, **use).outcome is None
    assert arrive(None, None, **use).outcome is GroupOutcome.INFRASTRUCTURE_FAILED
    assert arrive(1.0, None, drops_zero_variance=False).outcome is GroupOutcome.INFRASTRUCTURE_FAILED


def test_episodes_without_a_sampled_token_set_no_version():
    assert arrive(0.0, 1.0, versions=(-1, -1), tokens=0).min_version == 0
    assert arrival.ZERO_STD == 1e-8


def test_a_ledger_that_misses_a_group_does_not_add_up():
    counts = {("running", ""): 2, ("ready", ""): 1, ("closed", "trained"): 4, ("closed", "stale"): 1}
    book = ledger.build_ledger(8, counts)
    assert (book.num_open, book.num_closed, book.adds_up) == (3, 5, True)
    assert not ledger.build_ledger(9, counts).adds_up
    with pytest.raises(KeyError):
        ledger.build_ledger(1, {("closed", "vanished"): 1})


def test_errors_halt_only_over_their_share_and_with_enough_groups():
    failed, fine = "infrastructure_failed", "trained"
    assert halting.check_errors([failed] * 9, ["x"] * 9, 0.5) is None
    assert halting.check_errors([failed, fine] * 10, ["x"] * 20, 0.5) is None
    halt = halting.check_errors([failed] * 11 + [fine] * 9 + [failed] * 50, ["no sandbox"] * 70, 0.5)
    assert halt is not None
    assert halt.code == "error_share"
    assert "11 of the last 20" in halt.message
    assert "no sandbox" in halt.message


def test_no_signal_for_long_halts():
    assert halting.check_signal(["zero_variance"] * 19, 2) is None
    assert halting.check_signal(["zero_variance"] * 19 + ["trained"], 2) is None
    halt = halting.check_signal(["zero_variance"] * 20, 2)
    assert halt is not None
    assert halt.code == "no_signal"
    assert halting.check_signal(["zero_variance"] * 39, 4) is None
