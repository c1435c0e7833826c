"""Near-duplicate texts: shingles, MinHash signatures, locality-sensitive buckets, exact Jaccard on what meets there.

Broder (1997), "On the resemblance and containment of documents"; banding as in Leskovec, Rajaraman and Ullman,
"Mining of Massive Datasets", chapter 3. Pure and seeded.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_PERMUTATIONS = 128
MISS_RATE = 1e-3  # of a pair exactly at the threshold
MAX_CHARACTERS = 20_000  # of one text
MAX_REPRESENTATIVES = 64  # texts of one bucket that a newcomer is compared with

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Group:
    """Indices of texts linked by exact similarities of at least the threshold; not every pair in it must have it."""

    members: tuple[int, ...]


def normalise(text: str) -> str:
    """Case and runs of blanks folded, cut at MAX_CHARACTERS."""
    return " ".join(text.casefold().split())[:MAX_CHARACTERS]


def shingles(text: str, length: int) -> Hashes:
    """Sorted 64-bit hashes of all substrings of `length` characters; of the whole text where it is shorter."""
    codes = np.frombuffer(normalise(text).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    if not len(codes):
        return np.empty(0, dtype=np.uint64)
    if len(codes) < length:
        codes = np.pad(codes, (0, length - len(codes)))
    windows = np.lib.stride_tricks.sliding_window_view(codes, length)
    weights = np.random.default_rng(length).integers(1, 2**63, size=length, dtype=np.uint64) | np.uint64(1)
    return np.unique(_mix((windows * weights).sum(axis=1, dtype=np.uint64)))


def jaccard(a: Hashes, b: Hashes) -> float:
    """Size of the intersection over size of the union; 0 for two empty sets."""
    shared = len(np.intersect1d(a, b, assume_unique=True))
    union = len(a) + len(b) - shared
    return shared / union if union else 0.0


def signature(hashes: Hashes, seed: int = 0) -> Hashes:
    """MinHash signature [NUM_PERMUTATIONS]: two agree at each place with the probability of their Jaccard."""
    random = np.random.default_rng(seed)
    factors = random.integers(1, 2**63, size=(NUM_PERMUTATIONS, 1), dtype=np.uint64) | np.uint64(1)
    offsets = random.integers(0, 2**63, size=(NUM_PERMUTATIONS, 1), dtype=np.uint64)
    return _mix(hashes[None, :] * factors + offsets).min(axis=1)


def rows_per_band(threshold: float) -> int:
    """Most rows a band may have so that a pair at the threshold is missed with at most MISS_RATE."""
    for rows in (32, 16, 8, 4, 2):
        if (1 - threshold**rows) ** (NUM_PERMUTATIONS // rows) <= MISS_RATE:
            return rows
    return 1


def near_duplicates(sets: Sequence[Hashes], threshold: float, seed: int = 0) -> list[Group]:
    """Groups of two or more alike texts, in order of their first members.

    Members of a bucket are compared with its first unlike ones only, at most MAX_REPRESENTATIVES: the work grows with
    the number of texts, not with its square, also where thousands are alike.
    """
    parent = list(range(len(sets)))
    for bucket in _buckets(sets, rows_per_band(threshold), seed):
        representatives: list[int] = []
        for index in bucket:
            roots = {_root(parent, other) for other in representatives}
            if _root(parent, index) in roots:
                continue
            match = next((other for other in representatives if jaccard(sets[index], sets[other]) >= threshold), None)
            if match is not None:
                low, high = sorted((_root(parent, index), _root(parent, match)))
                parent[high] = low
            elif len(representatives) < MAX_REPRESENTATIVES:
                representatives.append(index)
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(len(sets)):
        members[_root(parent, index)].append(index)
    return [Group(tuple(group)) for group in members.values() if len(group) > 1]


def _buckets(sets: Sequence[Hashes], rows: int, seed: int) -> Iterator[list[int]]:
    """Indices that agree on a whole band, band by band."""
    filled = [index for index, hashes in enumerate(sets) if len(hashes)]
    signatures = {index: signature(sets[index], seed) for index in filled}
    for start in range(0, NUM_PERMUTATIONS, rows):
        buckets: dict[bytes, list[int]] = defaultdict(list)
        for index in filled:
            buckets[signatures[index][start : start + rows].tobytes()].append(index)
        yield from (bucket for bucket in buckets.values() if len(bucket) > 1)


def _root(parent: list[int], index: int) -> int:
    while parent[index] != index:
        parent[index] = parent[parent[index]]
        index = parent[index]
    return index


def _mix(values: Hashes) -> Hashes:
    """Finaliser of SplitMix64: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
