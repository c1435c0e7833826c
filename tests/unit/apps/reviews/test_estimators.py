"""Weighted error rates: right where unweighted ones are not, and honest about what is not known."""

import numpy as np
import pytest

from apps.reviews.estimators import Sampled, estimate_rates


def items(stratum, passed, probability, truths):
    return [Sampled(stratum, passed, probability, truth) for truth in truths]


def test_hand_computed_rates():
    # 20 of 200 passes labelled, 2 wrong; all 30 fails drawn, 15 labelled, 3 wrong.
    found = estimate_rates(
        items("pass", True, 0.1, [True] * 18 + [False] * 2)
        + items("fail", False, 1.0, [False] * 12 + [True] * 3 + [None] * 15)
    )
    assert found.num_labels == 35
    assert found.false_positive.estimate == pytest.approx(20 / (20 + 24))
    assert found.false_negative.estimate == pytest.approx(6 / (180 + 6))
    assert found.disagreement.estimate == pytest.approx(26 / 230)
    for rate in (found.false_positive, found.false_negative, found.disagreement):
        assert rate.low < rate.estimate < rate.high
    assert found == estimate_rates(
        items("pass", True, 0.1, [True] * 18 + [False] * 2)
        + items("fail", False, 1.0, [False] * 12 + [True] * 3 + [None] * 15)
    )


def test_under_ten_labels_nothing_is_measured():
    found = estimate_rates(items("pass", True, 0.1, [True] * 9))
    assert found.num_labels == 9 and found.false_positive is found.false_negative is found.disagreement is None


def test_an_unlabelled_verdict_of_the_verifier_leaves_the_rates_unknown():
    found = estimate_rates(items("pass", True, 0.1, [True] * 20) + items("fail", False, 0.1, [None] * 20))
    assert found.num_labels == 20 and found.disagreement is None


def test_small_strata_keep_their_weights_when_merged():
    found = estimate_rates(
        items("fail|clean", False, 0.02, [False] * 8) + items("fail|tamper", False, 1.0, [True] * 4)
        + items("pass", True, 0.02, [True] * 20)
    )  # fmt: skip
    # Unweighted, 4 of 12 fails are wrong; 8 of them stand for 400 episodes.
    assert found.false_negative.estimate == pytest.approx(404 * (4 / 404) / (404 * (4 / 404) + 1000))


def test_intervals_cover_and_the_enriched_queue_is_not_believed():
    rng = np.random.default_rng(1)
    covered, naive = 0, []
    for seed in range(120):
        sampled, population = [], 0.0
        wrong = failing = 0
        for _ in range(3000):
            passed, suspicious = rng.random() < 0.5, rng.random() < 0.1
            truth = passed != (rng.random() < (0.3 if suspicious else 0.04))
            failing += not truth
            wrong += passed and not truth
            probability = 1.0 if suspicious else 0.04
            if rng.random() < probability:
                sampled.append(Sampled(f"{passed}|{suspicious}", passed, probability, truth))
        population = wrong / failing
        rate = estimate_rates(sampled, seed).false_positive
        covered += rate.low <= population <= rate.high
        naive.append(
            sum(s.verifier_passed and not s.truth for s in sampled) / sum(not s.truth for s in sampled) - population
        )
    assert 0.88 <= covered / 120 <= 1.0
    assert np.mean(naive) > 0.1


def test_a_queue_that_offers_disputed_episodes_first_is_as_right_before_its_end():
    """With half of it labelled, true rates lie in the intervals; plain shares are far off."""
    rng = np.random.default_rng(2)
    covered, bias, plain = 0, [], []
    for seed in range(120):
        queue, wrong, failing = [], 0, 0
        for _ in range(3000):
            passed, disputed = rng.random() < 0.5, rng.random() < 0.08
            truth = passed != (rng.random() < (0.7 if disputed else 0.03))
            failing += not truth
            wrong += passed and not truth
            probability = 1.0 if disputed else 0.05
            if rng.random() < probability:
                place = rng.random() * (0.25 if disputed else 1.0)
                queue.append((place, f"{passed}|{disputed}", passed, probability, truth))
        queue.sort()
        sampled = [Sampled(*item[1:4], item[4] if n < len(queue) // 2 else None) for n, item in enumerate(queue)]
        rate = estimate_rates(sampled, seed).false_positive
        covered += rate.low <= wrong / failing <= rate.high
        bias.append(rate.estimate - wrong / failing)
        seen = [s for s in sampled if s.truth is False]
        plain.append(sum(s.verifier_passed for s in seen) / len(seen) - wrong / failing)
    assert 0.88 <= covered / 120 <= 1.0
    assert abs(np.mean(bias)) < 0.01 < 0.2 < np.mean(plain)


def test_merged_strata_stand_for_their_own_episodes_however_far_each_is_labelled():
    # Of 100 disputed passes 4 are labelled, all wrong; of 400 others 8 of 20 drawn, all right.
    found = estimate_rates(
        items("pass|disputed", True, 1.0, [False] * 4 + [None] * 96)
        + items("pass|clean", True, 0.05, [True] * 8 + [None] * 12)
        + items("fail|clean", False, 0.05, [False] * 20)
    )
    assert found.disagreement.estimate == pytest.approx(100 / (500 + 400))


def test_a_large_stratum_without_a_label_leaves_the_rates_unknown():
    disputed, fails = items("pass|disputed", True, 1.0, [False] * 12), items("fail|clean", False, 0.05, [False] * 12)
    assert estimate_rates(disputed + items("pass|clean", True, 0.05, [None] * 9) + fails).disagreement is None
    few = estimate_rates(disputed + items("pass|clean", True, 1.0, [None] * 2) + fails)
    assert few.disagreement is not None
