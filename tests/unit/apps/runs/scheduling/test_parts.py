"""Each pure decision by itself, at its boundaries."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.runs.scheduling import (
    admission,
    arrival,
    batching,
    capacity,
    halting,
    ledger,
    longtail,
    order,
    staleness,
    stragglers,
)
from apps.runs.scheduling.arrival import ArrivedEpisode, judge_arrival
from apps.runs.scheduling.stragglers import Arm, RunningGroup
from gpu_workers.contracts.enums import GroupOutcome
from gpu_workers.contracts.scheduling import HealthSpec, Stragglers


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
    mixed = [failed] * 6 + ["rejected"] * 5 + [fine] * 9
    assert halting.check_errors(mixed, ["x"] * 20, 0.5) is not None  # of no more use than one that failed


def test_no_signal_for_long_halts():
    assert halting.check_signal(["zero_variance"] * 19, 2) is None
    assert halting.check_signal(["zero_variance"] * 19 + ["trained"], 2) is None
    halt = halting.check_signal(["zero_variance"] * 20, 2)
    assert halt is not None
    assert halt.code == "no_signal"
    assert halting.check_signal(["zero_variance"] * 39, 4) is None
    assert halting.check_signal([*["zero_variance"] * 19, "rejected"], 2) is not None


def test_an_algorithm_that_compares_no_siblings_takes_equal_rewards_and_single_episodes():
    alone = {"size": 1, "newest_version": 0, "least_scored": 1, "drops_zero_variance": False}
    kept = judge_arrival([ArrivedEpisode(1.0, 0, 0, 5)], **alone)
    assert kept.outcome is None
    none = judge_arrival([ArrivedEpisode(None, 0, 0, 5)], **alone)
    assert none.outcome is GroupOutcome.INFRASTRUCTURE_FAILED


# -- stragglers


def running(number, version, arm=None):
    return RunningGroup(UUID(int=100 + number), number, version, arm)


def test_a_batch_leaves_behind_only_what_the_bound_would():
    ready = [group(1, 0), group(2, 0)]
    made = plan(ready, running=[running(3, 0), running(4, 1)], next_index=1)
    assert [batch.index for batch in made.batches] == [1]
    assert [g.number for g in made.left_behind] == [3]  # batch 2 would be two versions from it
    assert made.held_for == []


def test_a_batch_is_held_for_those_that_are_waited_for_and_the_others_go_at_once():
    arms = {3: Arm.WAIT, 4: Arm.ABORT}
    made = plan(
        [group(1, 0), group(2, 0)],
        running=[running(3, 0), running(4, 0)],
        next_index=1,
        arm_of=lambda g: arms[g.number],
    )
    assert made.batches == []
    assert [g.number for g in made.held_for] == [3]
    assert [g.number for g in made.left_behind] == [4]


def test_while_there_is_other_work_nothing_is_decided():
    def decide(_):
        raise AssertionError("there is no need to decide")

    made = plan(
        [group(1, 0), group(2, 0)],
        running=[running(3, 0)],
        next_index=1,
        arm_of=decide,
        holding_is_free=lambda _: True,
    )
    assert (made.batches, made.left_behind) == ([], [])
    assert [g.number for g in made.held_for] == [3]


def test_after_the_last_step_nobody_is_a_straggler():
    made = plan([group(1, 0), group(2, 0)], running=[running(3, 0)], next_index=1, num_steps=2)
    assert [batch.index for batch in made.batches] == [1]
    assert made.left_behind == made.held_for == []


def test_what_is_too_old_already_is_left_behind_without_a_batch():
    made = plan([], running=[running(3, 0)], next_index=2)
    assert [g.number for g in made.left_behind] == [3]


def decide(policy, share=0.0, number=1, requeue_number=0, max_requeues=2):
    return stragglers.decide(
        policy, share, seed=1, number=number, requeue_number=requeue_number, max_requeues=max_requeues
    )


def test_the_policy_decides_unless_a_share_is_drawn_and_the_last_chance_is_waited_for():
    assert decide(Stragglers.WAIT) == stragglers.Decision(Arm.WAIT, 1.0)
    assert decide(Stragglers.ABORT) == stragglers.Decision(Arm.ABORT, 0.0)
    assert decide(Stragglers.CONTINUE, requeue_number=2) == stragglers.Decision(Arm.WAIT, 1.0)
    assert decide(Stragglers.ABORT, max_requeues=0) == stragglers.Decision(Arm.ABORT, 0.0)
    drawn = [decide(Stragglers.ABORT, 0.25, number=number) for number in range(2000)]
    assert drawn == [decide(Stragglers.ABORT, 0.25, number=number) for number in range(2000)]  # the same again
    assert {d.propensity for d in drawn} == {0.25}
    assert sum(d.arm is Arm.WAIT for d in drawn) == pytest.approx(500, abs=80)  # four standard deviations


def test_over_sampling_adds_to_the_room_but_not_beyond_the_last_batch():
    assert admission.room(demand(over_sampling=0.3)) == 10  # 8, and two of 1.2
    assert admission.room(demand(over_sampling=0.3, num_batches=10)) == 0
    assert admission.num_admissible(4, 1, 0.3) == 10


# -- the fleet


def test_capacity_is_what_the_fleet_really_runs_at_once():
    def served(waited, took, at):
        return [capacity.Served(waited, took, float(at + n // 4 * took)) for n in range(40)]

    unknown = capacity.measure_capacity([], 8)
    assert (unknown.num_groups, unknown.saturated) == (8, False)
    free = capacity.measure_capacity(served(0.0, 10.0, 10), 4)
    assert (free.num_groups, free.saturated) == (8, False)  # four at once; nothing waits, so more may be tried
    full = capacity.measure_capacity(served(60.0, 10.0, 10), 64)
    assert (full.num_groups, full.saturated) == (5, True)


def test_episodes_are_sent_until_a_short_queue_stands_before_the_engines():
    assert capacity.engine_room(capacity.EngineLoad(running=64, queued=8), sent_since=0, least=16) == 24
    assert capacity.engine_room(capacity.EngineLoad(running=64, queued=8), sent_since=16, least=16) == 8
    assert capacity.engine_room(capacity.EngineLoad(running=64, queued=40), sent_since=0, least=16) == 0
    assert capacity.engine_room(capacity.EngineLoad(running=64, queued=0), sent_since=8, least=16) == 24
    assert capacity.engine_room(capacity.EngineLoad(running=0, queued=0), sent_since=8, least=16) == 8


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1), st.integers(0, 200))
def test_shares_are_max_min_fair(demands, total):
    shares = capacity.fair_shares(total, demands)
    assert sum(shares.values()) == min(total, sum(demands.values()))
    assert all(0 <= shares[claimant] <= demands[claimant] for claimant in demands)
    unmet = [claimant for claimant in demands if shares[claimant] < demands[claimant]]
    if unmet:
        least = min(shares[claimant] for claimant in unmet)
        assert max(shares.values()) <= least + 1  # whoever goes without has as much as anybody, to a group


# -- long tail


def test_every_second_is_counted_once():
    costs = [longtail.GroupCost("a", seconds=float(n)) for n in range(1, 20)]
    costs += [
        longtail.GroupCost("b", seconds=100.0, retry_seconds=7.0, num_retries=1),
        longtail.GroupCost("b", seconds=0.0, cancelled_seconds=5.0, arm="abort", propensity=0.5),
        longtail.GroupCost("c", seconds=50.0, arm="wait", propensity=0.5, recovery_seconds=20.0, num_passed=3),
        longtail.GroupCost("c", seconds=1.0, arm="wait", propensity=1.0, num_passed=8),
    ]
    tail = longtail.account(costs)
    assert tail.total_seconds == sum(range(1, 20)) + 100 + 7 + 5 + 50 + 1
    assert (tail.num_slowest, tail.slowest_seconds) == (3, 100 + 50 + 19)  # a tenth of 22 finished groups
    assert (tail.retry_seconds, tail.cancelled_seconds) == (7.0, 5.0)
    assert [cost.task for cost in tail.tasks] == ["a", "b", "c"]
    b = tail.tasks[1]
    assert (b.num_groups, b.num_retries, b.num_cancelled, b.slowest_seconds) == (2, 1, 1, 100.0)
    abort, wait = tail.arms
    assert (abort.num_groups, abort.seconds, abort.num_passed) == (1, 5.0, 0)
    assert (wait.num_groups, wait.seconds, wait.recovery_seconds, wait.num_passed) == (1, 50.0, 20.0, 3)


# -- health


def steps(*values, metric="train/grad_norm"):
    return [halting.StepHealth(n, {metric: value}) for n, value in enumerate(values, start=1)][::-1]


def test_a_rule_fires_after_so_many_steps_in_a_row_and_names_the_first():
    spec = HealthSpec(max_grad_norm=10.0)
    assert halting.check_steps(steps(1, 11, 11), spec, 3) is None
    assert halting.check_steps(steps(11, 1, 11, 11), spec, 3) is None
    halt = halting.check_steps(steps(1, 11, 12, 13), spec, 3)
    assert halt is not None
    assert (halt.code, halt.since_step) == ("grad_norm", 2)
    assert "11, 12, 13 (limit 10)" in halt.message
    assert halting.check_steps(steps(10, 10, 10), spec, 3) is None  # at the bound is within it
    assert halting.check_steps(steps(1e9, 1e9, 1e9), HealthSpec(max_grad_norm=0), 3) is None


def test_steps_whose_update_was_refused_count_for_their_own_rule_alone():
    refused = [
        halting.StepHealth(n, {"train/skipped_updates": 1.0, "train/grad_norm": float("nan")}) for n in (4, 3, 2)
    ]
    assert halting.check_steps(refused[:2], HealthSpec(window=1), 3) is None
    halt = halting.check_steps(refused, HealthSpec(window=1), 3)
    assert halt is not None
    assert (halt.code, halt.since_step) == ("non_finite", 2)


def test_quiet_for_long_is_a_stall():
    assert halting.check_stall(99.0, 100.0, "") is None
    assert halting.check_stall(1e9, 0.0, "") is None
    halt = halting.check_stall(100.0, 100.0, "Trainer attempt 2 loads the model.")
    assert halt is not None
    assert "loads the model" in halt.message
