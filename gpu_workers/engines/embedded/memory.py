"""Keys and values of all requests within a fixed number of tokens: locking, storing, making room."""

import torch

from gpu_workers.engines.embedded.branches import BRANCH_TOKENS, BranchPool
from gpu_workers.engines.embedded.config import LlamaConfig
from gpu_workers.engines.embedded.prefix_tree import Namespace, PrefixTree, Run
from gpu_workers.engines.embedded.request import Request


class KeyValueMemory:
    """The prefix tree and the branch slots. `capacity` counts tokens of the tree; slots are allocated apart."""

    def __init__(self, config: LlamaConfig, capacity: int, num_slots: int, dtype: torch.dtype) -> None:
        self.config, self.dtype, self.capacity = config, dtype, capacity
        self.tree = PrefixTree()
        self.branches = BranchPool(config, num_slots, dtype)

    @staticmethod
    def namespace(request: Request) -> Namespace:
        return (request.adapter.uid if request.adapter else 0, request.generation)

    @property
    def num_free(self) -> int:
        """Tokens that could be stored after evicting everything unlocked."""
        return self.capacity - self.tree.num_locked_tokens

    def make_room(self, num_tokens: int) -> bool:
        """Evict until `num_tokens` fit; False when locked runs leave too little."""
        missing = self.tree.num_tokens + num_tokens - self.capacity
        if missing > 0:
            self.tree.evict(missing)
        return self.tree.num_tokens + num_tokens <= self.capacity

    def new_run(self, num_tokens: int) -> torch.Tensor:
        """Uninitialised keys and values [L, 2, KVH, n, D]."""
        c = self.config
        return torch.empty(c.num_layers, 2, c.num_kv_heads, num_tokens, c.head_dim, dtype=self.dtype)

    def hold(self, request: Request, run: Run) -> None:
        """Make `run` the request's leaf, keeping exactly its path locked."""
        if run is not request.leaf:
            self.tree.lock(run)
            self.release(request)
            request.leaf = run

    def release(self, request: Request) -> None:
        """Unlock the request's path; the runs stay cached until evicted."""
        if request.leaf is not None:
            self.tree.unlock(request.leaf)
            request.leaf = None

    def spill(self, request: Request) -> None:
        """Move a full branch to the tree, below the request's leaf. Room has been made."""
        assert request.leaf is not None
        start = request.leaf.stop
        tokens = request.tokens(start, start + request.branch_length)
        kv = self.branches.take(request.slot, request.branch_length)
        self.hold(request, self.tree.extend(request.leaf, tokens, kv))
        request.branch_length = 0

    def keep_for_later(self, request: Request) -> None:
        """Cache what a leaving request computed, for its conversation's next turn, and unlock it."""
        if request.leaf is not None and request.branch_length and self.make_room(BRANCH_TOKENS):
            start = request.leaf.stop
            tokens = request.tokens(start, start + request.branch_length)
            self.tree.insert(request.leaf, tokens, self.branches.take(request.slot, request.branch_length))
        request.branch_length = 0
        self.release(request)

    def bytes_per_token(self) -> int:
        c = self.config
        return c.num_layers * 2 * c.num_kv_heads * c.head_dim * self.dtype.itemsize
