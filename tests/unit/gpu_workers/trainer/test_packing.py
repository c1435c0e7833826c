"""Packing: rows hold every sequence once, share prefixes, and attend only along each path."""

import numpy as np
import pytest

from gpu_workers.trainer.packing import TokenSequence, attention_mask, pack


def sequence(tokens: list[int], mask: list[int]) -> TokenSequence:
    return TokenSequence(np.array(tokens, dtype=np.int32), np.array(mask, dtype=np.uint8))


PROMPT = [1, 2, 3]
GROUP = [
    sequence([*PROMPT, 5, 6], [0, 0, 0, 1, 1]),
    sequence([*PROMPT, 5, 7, 8], [0, 0, 0, 1, 0, 1]),  # shares its first sampled token; a hole in the mask
    sequence([*PROMPT, 5, 6], [0, 0, 0, 1, 1]),  # identical to the first
    sequence([9, 4], [0, 1]),
]


def test_shared_prefixes_and_identical_samples_take_no_room():
    (row,) = pack(GROUP, max_row_tokens=100)
    assert row.num_nodes == 3 + 2 + 2 + 2
    assert row.tokens_N.tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 4]
    assert row.positions_N.tolist() == [0, 1, 2, 3, 4, 4, 5, 0, 1]
    assert row.subtree_end_N.tolist() == [7, 7, 7, 7, 5, 7, 7, 9, 9]


def test_every_loss_token_is_there_with_its_own_sample():
    (row,) = pack(GROUP, max_row_tokens=100)
    found = {
        (int(s), int(o)): int(row.target_U[e]) for s, o, e in zip(row.sequence_T, row.offset_T, row.edge_T, strict=True)
    }
    assert found == {(0, 0): 5, (0, 1): 6, (1, 0): 5, (1, 1): 8, (2, 0): 5, (2, 1): 6, (3, 0): 4}
    assert len(row.target_U) == 4  # 5, 6, 8 and 4 are computed once each
    assert row.tokens_N[row.source_U].tolist() == [3, 5, 7, 9]


def test_a_node_sees_exactly_its_path():
    (row,) = pack(GROUP, max_row_tokens=100)
    seen = attention_mask(row)
    assert np.flatnonzero(seen[6]).tolist() == [0, 1, 2, 3, 5, 6]
    assert np.flatnonzero(seen[8]).tolist() == [7, 8]


@pytest.mark.parametrize("limit", [1, 6, 8, 11, 30])
def test_rows_stay_within_the_limit_and_lose_nothing(limit: int):
    rng = np.random.default_rng(limit)
    sequences = []
    for _ in range(12):
        tokens = [*PROMPT, *rng.integers(1, 3, int(rng.integers(1, 6))).tolist()]
        sequences.append(sequence(tokens, [0, 0, 0] + [1] * (len(tokens) - 3)))
    rows = pack(sequences, max_row_tokens=limit)
    assert all(row.num_nodes <= max(limit, 8) for row in rows)
    for index, original in enumerate(sequences):
        targets = [int(row.target_U[e]) for row in rows for e in row.edge_T[row.sequence_T == index]]
        assert targets == original.tokens[3:].tolist()


def test_malformed_sequences_are_refused_by_number():
    with pytest.raises(ValueError, match="sequence 1 has 0 tokens"):
        pack([GROUP[0], sequence([], [])], max_row_tokens=10)
    with pytest.raises(ValueError, match="sequence 0: its first token"):
        pack([sequence([1, 2], [1, 1])], max_row_tokens=10)
    assert pack([], max_row_tokens=10) == []


def test_a_sequence_without_loss_tokens_packs():
    (row,) = pack([sequence([1, 2], [0, 0])], max_row_tokens=10)
    assert row.num_nodes == 2
    assert len(row.edge_T) == 0
