"""The radix tree: what is found, split, kept and evicted."""

import numpy as np
import pytest
import torch

from gpu_workers.engines.embedded.prefix_tree import PrefixTree, Run, common_prefix

BASE = (0, 0)


def ids(*tokens: int) -> np.ndarray:
    return np.asarray(tokens, np.int32)


def kv(tokens: np.ndarray) -> torch.Tensor:
    """[L=1, 2, KVH=1, n, D=1]: the token itself, so that content can be checked."""
    return torch.tensor(tokens.tolist()).float().view(1, 1, 1, -1, 1).expand(1, 2, 1, -1, 1).clone()


def add(tree: PrefixTree, *tokens: int) -> Run:
    array = ids(*tokens)
    run = tree.match(BASE, array, len(array))
    return tree.insert(run, array[run.stop :], kv(array[run.stop :]))


def content(run: Run) -> list[int]:
    return [int(token) for part in run.path() for token in part.kv[0, 0, 0, :, 0]]


@pytest.mark.parametrize(
    ("a", "b", "length"), [((), (1,), 0), ((1, 2), (1, 2), 2), ((1, 2, 3), (1, 2, 4, 5), 2), ((1,), (2,), 0)]
)
def test_common_prefix(a: tuple[int, ...], b: tuple[int, ...], length: int) -> None:
    assert common_prefix(ids(*a), ids(*b)) == length


def test_a_prefix_is_found_and_a_run_is_split_where_paths_part() -> None:
    tree = PrefixTree()
    first = add(tree, 1, 2, 3, 4)
    assert tree.match(BASE, ids(1, 2, 3, 4, 5), 5) is first
    second = add(tree, 1, 2, 9)
    assert content(second) == [1, 2, 9]
    assert content(first) == [1, 2, 3, 4]
    assert [part.tokens.tolist() for part in first.path()] == [[1, 2], [3, 4]]
    assert tree.num_tokens == 5
    assert tree.match(BASE, ids(1, 2, 3, 4), 3).stop == 3
    assert tree.match(BASE, ids(8), 1).stop == 0


def test_namespaces_never_meet() -> None:
    tree = PrefixTree()
    add(tree, 1, 2, 3)
    assert tree.match((1, 0), ids(1, 2, 3), 3).stop == 0
    assert tree.match((0, 1), ids(1, 2, 3), 3).stop == 0


def test_inserting_what_is_there_keeps_it() -> None:
    tree = PrefixTree()
    first = add(tree, 1, 2, 3)
    again = tree.insert(tree.root(BASE), ids(1, 2, 3), kv(ids(7, 7, 7)))
    assert again is first
    assert content(again) == [1, 2, 3]
    assert tree.num_tokens == 3


def test_locked_paths_survive_eviction_and_the_oldest_goes_first() -> None:
    tree = PrefixTree()
    locked = add(tree, 1, 2, 3)
    tree.lock(locked)
    old, new = add(tree, 1, 2, 4, 4), add(tree, 5, 5)
    assert tree.num_locked_tokens == 3
    assert tree.evict(1) == len(old.tokens)
    assert tree.match(BASE, ids(5, 5), 2) is new
    assert tree.evict(100) == 2
    assert content(locked) == [1, 2, 3]
    assert tree.num_tokens == 3
    tree.unlock(locked)
    assert tree.num_locked_tokens == 0
    assert tree.evict(100) == 3
    assert tree.num_tokens == 0


def test_a_split_below_a_lock_keeps_the_count() -> None:
    tree = PrefixTree()
    run = add(tree, 1, 2, 3, 4)
    tree.lock(run)
    add(tree, 1, 2, 8)
    assert tree.num_locked_tokens == 4
    tree.unlock(run)
    assert tree.num_locked_tokens == 0


def test_extend_grows_in_place_only_for_a_single_user() -> None:
    tree = PrefixTree()
    run = add(tree, 1, 2)
    tree.lock(run)
    assert tree.extend(run, ids(3), kv(ids(3))) is run
    assert (content(run), run.stop, tree.num_tokens, tree.num_locked_tokens) == ([1, 2, 3], 3, 3, 3)
    tree.lock(run)
    other = tree.extend(run, ids(4), kv(ids(4)))
    assert other is not run
    assert content(other) == [1, 2, 3, 4]
    assert content(run) == [1, 2, 3]


def test_clear_refuses_while_locked() -> None:
    tree = PrefixTree()
    run = add(tree, 1)
    tree.lock(run)
    with pytest.raises(AssertionError):
        tree.clear()
    tree.unlock(run)
    tree.clear()
    assert tree.num_tokens == 0
    assert tree.match(BASE, ids(1), 1).stop == 0


def test_an_adapters_runs_are_forgotten_with_it() -> None:
    tree = PrefixTree()
    tree.insert(tree.root((3, 0)), ids(1, 2), kv(ids(1, 2)))
    add(tree, 1, 2, 3)
    tree.evict_namespace(3)
    assert tree.num_tokens == 3
    assert tree.match((3, 0), ids(1, 2), 2).stop == 0
