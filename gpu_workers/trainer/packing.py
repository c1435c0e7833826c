"""Packing: token sequences as prefix trees, several in a row, so that every shared prefix is computed once.

The G episodes of a group share their prompt, often their first tokens, sometimes everything. A row holds the nodes of
such trees in depth-first order. Node i may attend to node j exactly when j is on its path: j ≤ i < subtree_end[j].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenSequence:
    """One episode or example: tokens of length L, mask 1 on tokens that enter the loss. The first token never does."""

    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]


@dataclass(frozen=True)
class PackedRow:
    """N nodes in depth-first order and, flattened over the row's sequences, its T loss tokens.

    tokens_N, positions_N (depth, from 0), subtree_end_N (exclusive). A loss token t is the edge edge_T[t] out of the
    U distinct edges; edge u predicts token target_U[u] from node source_U[u]. sequence_T and offset_T say where the
    token came from: index in the input, and rank among the m=1 tokens of that sequence.
    """

    tokens_N: NDArray[np.int64]
    positions_N: NDArray[np.int64]
    subtree_end_N: NDArray[np.int64]
    source_U: NDArray[np.int64]
    target_U: NDArray[np.int64]
    edge_T: NDArray[np.int64]
    sequence_T: NDArray[np.int64]
    offset_T: NDArray[np.int64]

    @property
    def num_nodes(self) -> int:
        return len(self.tokens_N)


class _RowBuilder:
    """Adds sequences in lexicographic order; the path of the last one is all that can be shared with the next."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.parents: list[int] = []
        self.path: list[int] = []
        self.last = np.zeros(0, dtype=np.int32)
        self.members: list[tuple[int, NDArray[np.int64]]] = []  # sequence index, node of each of its tokens

    def num_new(self, sequence: TokenSequence) -> int:
        return len(sequence.tokens) - _common_prefix(self.last, sequence.tokens)

    def add(self, index: int, sequence: TokenSequence) -> None:
        shared = _common_prefix(self.last, sequence.tokens)
        path = self.path[:shared]
        for depth in range(shared, len(sequence.tokens)):
            self.parents.append(path[-1] if path else -1)
            path.append(len(self.tokens))
            self.tokens.append(int(sequence.tokens[depth]))
            self.positions.append(depth)
        self.path, self.last = path, sequence.tokens
        self.members.append((index, np.array(path, dtype=np.int64)))

    def build(self, sequences: Sequence[TokenSequence]) -> PackedRow:
        nodes_T: list[NDArray[np.int64]] = []
        sequence_T: list[NDArray[np.int64]] = []
        offset_T: list[NDArray[np.int64]] = []
        for index, path in self.members:
            sampled = path[np.flatnonzero(sequences[index].mask)]
            nodes_T.append(sampled)
            sequence_T.append(np.full(len(sampled), index, dtype=np.int64))
            offset_T.append(np.arange(len(sampled), dtype=np.int64))
        nodes = np.concatenate(nodes_T) if nodes_T else np.zeros(0, dtype=np.int64)
        unique_nodes, edge_T = np.unique(nodes, return_inverse=True)
        parents = np.array(self.parents, dtype=np.int64)
        tokens = np.array(self.tokens, dtype=np.int64)
        return PackedRow(
            tokens_N=tokens,
            positions_N=np.array(self.positions, dtype=np.int64),
            subtree_end_N=_subtree_ends(self.parents),
            source_U=parents[unique_nodes],
            target_U=tokens[unique_nodes],
            edge_T=edge_T.astype(np.int64).reshape(-1),
            sequence_T=np.concatenate(sequence_T) if sequence_T else np.zeros(0, dtype=np.int64),
            offset_T=np.concatenate(offset_T) if offset_T else np.zeros(0, dtype=np.int64),
        )


def pack(sequences: Sequence[TokenSequence], *, max_row_tokens: int) -> list[PackedRow]:
    """Rows of at most `max_row_tokens` nodes that together hold every sequence once.

    Only a single sequence longer than the limit makes a longer row. Raises ValueError for an empty sequence, arrays
    that disagree, or a first token in the loss (nothing predicts it).
    """
    for index, sequence in enumerate(sequences):
        if len(sequence.tokens) == 0 or len(sequence.tokens) != len(sequence.mask):
            raise ValueError(
                f"sequence {index} has {len(sequence.tokens)} tokens and {len(sequence.mask)} mask entries"
            )
        if sequence.mask[0]:
            raise ValueError(f"sequence {index}: its first token is in the loss, but no token comes before it")
    order = sorted(range(len(sequences)), key=lambda i: (sequences[i].tokens.tolist(), i))
    rows: list[PackedRow] = []
    builder = _RowBuilder()
    for index in order:
        sequence = sequences[index]
        if builder.members and len(builder.tokens) + builder.num_new(sequence) > max_row_tokens:
            rows.append(builder.build(sequences))
            builder = _RowBuilder()
        builder.add(index, sequence)
    if builder.members:
        rows.append(builder.build(sequences))
    return rows


def attention_mask(row: PackedRow) -> NDArray[np.bool_]:
    """[N, N] boolean: query i may see key j."""
    index = np.arange(row.num_nodes)
    query, key = index[:, None], index[None, :]
    return (key <= query) & (query < row.subtree_end_N[None, :])


def _common_prefix(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def _subtree_ends(parents: Sequence[int]) -> NDArray[np.int64]:
    """End of each node's preorder interval: a node's descendants follow it directly."""
    ends = np.arange(1, len(parents) + 1, dtype=np.int64)
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            ends[parents[node]] = max(ends[parents[node]], ends[node])
    return ends
