"""Keys and values of the newest tokens of each running request, side by side so that one call serves all rows."""

import torch

from gpu_workers.engines.embedded.config import LlamaConfig

# Tokens a row keeps here before they move to a run of their own: attention over rows is padded to the longest of them.
BRANCH_TOKENS = 64


class BranchPool:
    """Row i of the decode batch owns slot i; slots in use are always 0..n-1.

    Storage is [L, 2, slots, BRANCH_TOKENS, KVH, D]: token by token: a step writes whole cache lines.
    """

    def __init__(self, config: LlamaConfig, num_slots: int, dtype: torch.dtype) -> None:
        kv_heads, dim = config.num_kv_heads, config.head_dim
        self.storage = torch.zeros(config.num_layers, 2, num_slots, BRANCH_TOKENS, kv_heads, dim, dtype=dtype)
        # Per layer, keys and values: [slots, KVH, BRANCH_TOKENS, D] to read, [slots * BRANCH_TOKENS, KVH, D] to write.
        self.read = [(layer[0].transpose(1, 2), layer[1].transpose(1, 2)) for layer in self.storage]
        self.write = [(layer[0].flatten(0, 1), layer[1].flatten(0, 1)) for layer in self.storage]
        positions = torch.arange(BRANCH_TOKENS)
        # Row t masks everything after position t.
        self.mask_table = torch.where(positions[None, :] <= positions[:, None], 0.0, float("-inf")).to(dtype)
        self.slots = torch.arange(num_slots)

    def take(self, slot: int, length: int) -> torch.Tensor:
        """A copy [L, 2, KVH, length, D] of one row's tokens."""
        return self.storage[:, :, slot, :length].transpose(2, 3).contiguous()

    def move(self, source: int, target: int, length: int) -> None:
        """Give the content of slot `source` to slot `target`."""
        self.storage[:, :, target, :length] = self.storage[:, :, source, :length]
