"""Error rates from outcomes, against counts and intervals made by hand."""

import pytest

from apps.evaluations.statistics import wilson
from apps.evaluations.verifier_errors import estimate_errors
from apps.tasks.measurements.selectors import Outcome


def outcome(task, verdict, truth, difference="value", origin="constant"):
    return Outcome(task, origin, verdict, truth, difference if truth == "wrong" else "")


OUTCOMES = [
    outcome("a", "pass", "wrong"), outcome("a", "pass", "wrong", "type"), outcome("a", "fail", "wrong"),
    outcome("b", "fail", "wrong", origin="return"), outcome("b", "pass", "right"), outcome("b", "fail", "right"),
    outcome("c", "fail", "wrong"), outcome("c", "pass", "undecided"), outcome("c", "error", "wrong"),
    outcome("d", "quarantined", "right"),
]  # fmt: skip


def test_counts():
    found = estimate_errors(OUTCOMES)
    assert (found.num_candidates, found.num_tasks, found.num_undecided) == (10, 4, 3)
    assert (found.false_pass.count, found.false_pass.n, found.false_pass.num_tasks) == (2, 5, 3)
    assert (found.false_fail.count, found.false_fail.n) == (1, 2)
    assert (found.wrong_among_passed.count, found.wrong_among_passed.n) == (2, 3)
    assert (found.false_pass_by_value.count, found.false_pass_by_value.n) == (1, 4)
    assert (found.tasks_misjudged.count, found.tasks_misjudged.n) == (2, 3), "a and b; nothing is decided of d"
    assert found.differences == {"value": 1, "type": 1}
    assert [(row.origin, row.num_candidates, row.rate.count, row.rate.n) for row in found.operators] == [
        ("constant", 6, 2, 4), ("return", 1, 0, 1),
    ]  # fmt: skip


def test_intervals():
    found = estimate_errors(OUTCOMES).false_pass
    assert found.estimate == pytest.approx(0.4) and found.wilson == wilson(2, 5)
    assert found.clustered.low < found.wilson.low < 0.4 < found.wilson.high < found.clustered.high, "all on one task"


def test_candidates_of_one_task_are_no_independent_evidence():
    alike = [outcome(task, "pass" if task < "c" else "fail", "wrong") for task in "abcdefgh" for _ in range(10)]
    found = estimate_errors(alike).false_pass
    assert found.estimate == 0.25
    assert found.clustered.high - found.clustered.low > 2 * (found.wilson.high - found.wilson.low)


def test_nothing_measured():
    found = estimate_errors([])
    assert found.false_pass.estimate is None and found.false_pass.n == 0 and found.operators == []
    assert (found.false_pass.clustered.low, found.false_pass.clustered.high) == (0.0, 1.0)
