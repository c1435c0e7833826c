"""The loaded model: config, weights and their version, ready to run batches."""

from dataclasses import dataclass
from pathlib import Path

import torch

from gpu_workers.engines.embedded import deterministic
from gpu_workers.engines.embedded.batch import Batch
from gpu_workers.engines.embedded.branches import BranchPool
from gpu_workers.engines.embedded.config import EngineConfigError, LlamaConfig, read_config
from gpu_workers.engines.embedded.forward import RotaryTable, forward
from gpu_workers.engines.embedded.linear import resolve_dtype
from gpu_workers.engines.embedded.weights import LlamaWeights, load_weights

DEFAULT_WEIGHT_VERSION = "default"


@dataclass
class Model:
    """`generation` counts changes of the weights; cached keys and values of another generation are not matched.

    `block_rows` above 0: deterministic, every product with so many rows.
    """

    path: Path
    config: LlamaConfig
    weights: LlamaWeights
    rotary: RotaryTable
    weight_version: str = DEFAULT_WEIGHT_VERSION
    generation: int = 0
    block_rows: int = 0

    def hidden(self, batch: Batch, branches: BranchPool) -> torch.Tensor:
        """Final hidden states of the batch's wanted rows."""
        parts = self.config, self.weights, self.rotary, branches, batch
        return deterministic.forward(*parts, self.block_rows) if self.block_rows else forward(*parts)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, V] in the model's dtype."""
        if self.block_rows:
            return deterministic.in_blocks(self.weights.head, hidden, self.block_rows)
        return self.weights.head(hidden)

    def check_successor(self, folder: Path) -> LlamaConfig:
        """Config of other weights for this model. Raises EngineConfigError when the shapes differ."""
        config = read_config(folder)
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "context_length",
            "rope_theta",
        ):
            ours, theirs = getattr(self.config, name), getattr(config, name)
            if ours != theirs:
                raise EngineConfigError(
                    f"{folder}: {name} is {theirs}, the served model's is {ours}; start another engine for it"
                )
        return config


def load_model(folder: Path, dtype_name: str = "auto", block_rows: int = 0) -> Model:
    """Read a model folder. Raises EngineConfigError."""
    config = read_config(folder)
    dtype = resolve_dtype(dtype_name, config.dtype)
    weights = load_weights(folder, config, dtype)
    if block_rows:
        deterministic.check_rows(config, weights, block_rows)
    return Model(folder, config, weights, RotaryTable(config, dtype), block_rows=block_rows)
