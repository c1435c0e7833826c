"""Near-duplicates against brute force and against values worked out by hand."""

import itertools
import random

import numpy as np
import pytest

from apps.tasks.reports.minhash import (
    NUM_PERMUTATIONS,
    jaccard,
    near_duplicates,
    normalise,
    rows_per_band,
    shingles,
    signature,
)

WORDS = [f"word{n}" for n in range(400)]


def test_shingles_are_the_substrings_of_the_folded_text() -> None:
    assert normalise("  Ab\tC  d ") == "ab c d"
    assert len(shingles("abcdef", 5)) == 2  # abcde, bcdef
    assert len(shingles("aaaaaaaa", 5)) == 1
    assert len(shingles("ab", 5)) == 1
    assert len(shingles("", 5)) == 0
    assert (shingles("Ab  Cd efg", 5) == shingles("ab cd EFG", 5)).all()


def test_jaccard_by_hand() -> None:
    # abcde bcdef cdefg | bcdef cdefg defgh: two of four
    assert jaccard(shingles("abcdefg", 5), shingles("bcdefgh", 5)) == 0.5
    assert jaccard(shingles("abc", 5), shingles("abc", 5)) == 1.0
    assert jaccard(shingles("", 5), shingles("", 5)) == 0.0


def test_signatures_estimate_jaccard() -> None:
    """Standard error of a share over 128 places is at most 0.045; the mean over 200 pairs is ten times closer."""
    source = random.Random(1)
    errors = []
    for seed in range(200):  # permutations of their own: errors under the same ones go together
        left = source.sample(WORDS, 60)
        right = left[: source.randrange(60)] + source.sample(WORDS, 30)
        a, b = shingles(" ".join(left), 5), shingles(" ".join(right), 5)
        errors.append((signature(a, seed) == signature(b, seed)).mean() - jaccard(a, b))
    assert abs(np.mean(errors)) < 0.01
    assert np.std(errors) < 0.06


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 0.95])
def test_a_pair_at_the_threshold_is_hardly_ever_missed(threshold: float) -> None:
    rows = rows_per_band(threshold)
    assert NUM_PERMUTATIONS % rows == 0
    assert (1 - threshold**rows) ** (NUM_PERMUTATIONS // rows) <= 1e-3


@pytest.mark.parametrize("threshold", [0.6, 0.8])
def test_groups_are_those_of_brute_force(threshold: float) -> None:
    source = random.Random(7)
    texts = []
    for _ in range(60):
        words = source.sample(WORDS, 25)
        texts.append(" ".join(words))
        for _ in range(source.randrange(3)):
            changed = list(words)
            for place in source.sample(range(25), source.randrange(1, 9)):
                changed[place] = source.choice(WORDS)
            texts.append(" ".join(changed))
    sets = [shingles(text, 5) for text in texts]
    parent = list(range(len(texts)))
    for a, b in itertools.combinations(range(len(texts)), 2):
        if jaccard(sets[a], sets[b]) >= threshold:
            old, new = max(parent[a], parent[b]), min(parent[a], parent[b])
            parent = [new if root == old else root for root in parent]
    wanted = {tuple(i for i, root in enumerate(parent) if root == first) for first in set(parent)}
    found = {group.members for group in near_duplicates(sets, threshold)}
    assert found == {group for group in wanted if len(group) > 1}
    assert found, "the example must contain duplicates"


def test_the_same_texts_give_the_same_groups_in_the_same_order() -> None:
    sets = [shingles(text, 5) for text in ("the same long text", "other words here", "The same  long text", "")]
    assert [group.members for group in near_duplicates(sets, 0.8)] == [(0, 2)]
    assert near_duplicates(sets, 0.8) == near_duplicates(sets, 0.8)
    assert near_duplicates([], 0.8) == []


def test_thousands_of_copies_take_seconds_not_hours() -> None:
    sets = [shingles(f"please answer this long question of ours, number {n % 3}", 5) for n in range(3000)]
    groups = near_duplicates(sets, 0.8)
    assert [len(group.members) for group in groups] == [3000]
