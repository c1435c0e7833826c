"""The prefix cache: keys and values of token runs in a radix tree, shared by every request with that prefix.

One root per namespace (adapter load, weights generation): equal tokens under different weights never meet.
Runs are locked along the path of every running request; what is not locked is evicted, least recently used first.
"""

import heapq
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Namespace = tuple[int, int]  # adapter uid (0: base), weights generation


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


class Run:
    """Keys and values of consecutive tokens. kv is [L, 2, KVH, n, D].

    `end_hidden` [D] is the final hidden state at the last token, when it is known: a prompt that ends here needs no
    forward pass at all before its first token is sampled.
    """

    __slots__ = ("children", "end_hidden", "kv", "last_used", "layers", "num_locks", "parent", "stop", "tokens")

    def __init__(self, parent: "Run | None", tokens: Tokens, kv: torch.Tensor | None) -> None:
        self.parent = parent
        self.children: dict[int, Run] = {}
        self.end_hidden: torch.Tensor | None = None
        self.num_locks = 0
        self.last_used = 0
        self.stop: int = (parent.stop if parent else 0) + len(tokens)
        self.set_content(tokens, kv)

    def set_content(self, tokens: Tokens, kv: torch.Tensor | None) -> None:
        self.tokens = tokens
        self.kv = kv
        # Views [1, KVH, n, D] for the attention kernel, made once.
        self.layers = [] if kv is None else [(layer[0].unsqueeze(0), layer[1].unsqueeze(0)) for layer in kv]

    def path(self) -> list["Run"]:
        """Runs from the root's child down to this one."""
        runs: list[Run] = []
        run: Run | None = self
        while run is not None and run.kv is not None:
            runs.append(run)
            run = run.parent
        return runs[::-1]


class PrefixTree:
    """Radix trees by namespace and their accounting in tokens."""

    def __init__(self) -> None:
        self.roots: dict[Namespace, Run] = {}
        self.num_tokens = 0
        self.num_locked_tokens = 0
        self._clock = itertools.count(1)

    def root(self, namespace: Namespace) -> Run:
        return self.roots.setdefault(namespace, Run(None, np.empty(0, np.int32), None))

    def match(self, namespace: Namespace, tokens: Tokens, limit: int) -> Run:
        """The run whose path spells the longest cached prefix of `tokens`, at most `limit`; splits a run if needed."""
        run, position, now = self.root(namespace), 0, next(self._clock)
        while position < limit:
            child = run.children.get(int(tokens[position]))
            if child is None:
                break
            length = common_prefix(child.tokens, tokens[position:limit])
            child.last_used = now
            position += length
            if length < len(child.tokens):
                return self._split(child, length) if length else run
            run = child
        return run

    def insert(self, run: Run, tokens: Tokens, kv: torch.Tensor) -> Run:
        """Append `tokens` with their kv below `run`, keeping what is there. Returns the run that ends with them."""
        now = next(self._clock)
        while len(tokens):
            child = run.children.get(int(tokens[0]))
            if child is None:
                child = Run(run, tokens, kv)
                child.last_used = now
                run.children[int(tokens[0])] = child
                self.num_tokens += len(tokens)
                return child
            length = common_prefix(child.tokens, tokens)
            run = child if length == len(child.tokens) else self._split(child, length)
            run.last_used = now
            tokens, kv = tokens[length:], kv[:, :, :, length:]
        return run

    def extend(self, run: Run, tokens: Tokens, kv: torch.Tensor, *, num_users: int = 1) -> Run:
        """Like insert, but grows `run` in place where only the `num_users` that want it to grow can see it."""
        if run.kv is None or run.children or run.num_locks != num_users:
            return self.insert(run, tokens, kv)
        run.set_content(np.concatenate([run.tokens, tokens]), torch.cat([run.kv, kv], dim=3))
        run.stop += len(tokens)
        run.end_hidden = None
        self.num_tokens += len(tokens)
        self.num_locked_tokens += len(tokens)
        return run

    def _split(self, run: Run, length: int) -> Run:
        """Cut `run` after `length` tokens; the new upper run is returned, `run` itself stays the lower one."""
        assert run.kv is not None and run.parent is not None
        upper = Run(run.parent, run.tokens[:length], run.kv[:, :, :, :length].clone())
        upper.num_locks, upper.last_used = run.num_locks, run.last_used
        run.parent.children[int(run.tokens[0])] = upper
        upper.children[int(run.tokens[length])] = run
        run.parent = upper
        run.set_content(run.tokens[length:], run.kv[:, :, :, length:].clone())
        return upper

    def lock(self, run: Run) -> None:
        """Protect the whole path of `run` from eviction."""
        for part in run.path():
            if part.num_locks == 0:
                self.num_locked_tokens += len(part.tokens)
            part.num_locks += 1

    def unlock(self, run: Run) -> None:
        for part in run.path():
            part.num_locks -= 1
            if part.num_locks == 0:
                self.num_locked_tokens -= len(part.tokens)

    def evict(self, num_tokens: int) -> int:
        """Drop unlocked runs, least recently used first, until `num_tokens` are freed; returns how many were."""
        heap = [(run.last_used, id(run), run) for run in self._runs() if not run.children and not run.num_locks]
        heapq.heapify(heap)
        freed = 0
        while heap and freed < num_tokens:
            _, _, run = heapq.heappop(heap)
            parent = run.parent
            assert parent is not None
            del parent.children[int(run.tokens[0])]
            freed += len(run.tokens)
            self.num_tokens -= len(run.tokens)
            if parent.kv is not None and not parent.children and not parent.num_locks:
                heapq.heappush(heap, (parent.last_used, id(parent), parent))
        return freed

    def evict_namespace(self, adapter_uid: int) -> None:
        """Forget an adapter that no request uses any more."""
        for namespace in [key for key in self.roots if key[0] == adapter_uid]:
            self.num_tokens -= sum(len(run.tokens) for run in self._runs(self.roots.pop(namespace)))

    def clear(self) -> None:
        """Forget everything; the caller guarantees that nothing is locked."""
        assert self.num_locked_tokens == 0, "flushed while requests hold cached keys and values"
        self.roots.clear()
        self.num_tokens = 0

    def _runs(self, root: Run | None = None) -> Iterator[Run]:
        stack = [child for top in ([root] if root else self.roots.values()) for child in top.children.values()]
        while stack:
            run = stack.pop()
            yield run
            stack.extend(run.children.values())
