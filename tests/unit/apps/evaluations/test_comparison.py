"""Arms against one of them: what is paired, and numbers against another formula."""

import pytest
from scipy import stats

from apps.evaluations.comparison import _compare
from apps.evaluations.results import EpisodeOutcome, TaskOutcome


def task(number: int, *arms: list[bool], cluster: str = "") -> TaskOutcome:
    outcomes = [[EpisodeOutcome(None, None, success, "", "") for success in arm] for arm in arms]  # type: ignore[arg-type]
    return TaskOutcome(None, f"t{number}", cluster or f"t{number}", [], outcomes)  # type: ignore[arg-type]


def test_independent_tasks_give_the_paired_t_interval():
    pairs = [([True], [True]), ([False], [True]), ([False], [True]), ([True], [False]), ([False], [False])] * 4
    found = _compare("b", [task(number, a, b) for number, (a, b) in enumerate(pairs)], 0, 1)
    differences = [float(b[0]) - float(a[0]) for a, b in pairs]
    expected = stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert (found.difference, found.low, found.high) == pytest.approx((0.2, expected.low, expected.high))
    assert (found.num_better, found.num_worse, found.num_tasks, found.trusted) == (8, 4, 20, True)
    assert found.p_sign == pytest.approx(stats.binomtest(4, 12).pvalue)
    assert found.p_bootstrap is not None and found.p_bootstrap > 0.05, "the interval holds 0"
    better = _compare("b", [task(number, [number < 3], [number > 0]) for number in range(20)], 0, 1)
    assert better.low > 0 and better.p_bootstrap < 0.01  # type: ignore[operator]


def test_tasks_that_lack_an_arm_are_left_out_and_counted():
    tasks = [task(1, [True], []), task(2, [True, False], [True, True]), task(3, [], [])]
    found = _compare("b", tasks, 0, 1)
    assert (found.num_tasks, found.num_unpaired, found.difference) == (1, 2, 0.5)
    assert (found.low, found.high, found.p_bootstrap, found.trusted) == (None, None, None, False)


def test_nothing_measured_is_nothing_said():
    found = _compare("b", [task(1, [], [])], 0, 1)
    assert (found.num_tasks, found.difference, found.p_sign, found.detectable) == (0, None, None, None)


def test_one_cluster_is_one_observation():
    found = _compare("b", [task(number, [False], [True], cluster="one") for number in range(30)], 0, 1)
    assert (found.difference, found.low, found.num_clusters, found.trusted) == (1.0, None, 1, False)
