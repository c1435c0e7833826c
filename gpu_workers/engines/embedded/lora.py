"""LoRA adapters in PEFT's format, fused like the base layers and applied to the rows that ask for them."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from gpu_workers.contracts.checkpoints import ADAPTER_WEIGHTS
from gpu_workers.engines.embedded.config import LlamaConfig
from gpu_workers.engines.embedded.linear import PackedLinear

# Fused module -> its parts, in the order in which the base weights are concatenated.
FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
_KEY = re.compile(r"layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])(?:\.default)?\.weight$")
_uids, _uses = itertools.count(1), itertools.count(1)


class AdapterError(ValueError):
    """An adapter folder that cannot be loaded; says why."""


@dataclass(frozen=True)
class LowRank:
    """delta(x) = up(down(x)); the scaling is folded into `up`."""

    down: PackedLinear
    up: PackedLinear


@dataclass
class Adapter:
    """A loaded adapter. `uid` is unique per load: the same name loaded again never shares cached keys and values."""

    name: str
    path: str
    rank: int
    layers: list[dict[str, LowRank]]
    uid: int = field(default_factory=lambda: next(_uids))
    pinned: bool = False  # never pushed out by another
    last_used: int = field(default_factory=lambda: next(_uses))
    retiring: bool = False  # being unloaded: no new requests

    def touch(self) -> None:
        """A request names it now."""
        self.last_used = next(_uses)


@dataclass(frozen=True)
class AdapterRows:
    """Rows of a batch under one adapter; `index` None means all rows."""

    adapter: Adapter
    index: torch.Tensor | None


def linear_with_adapters(
    base: PackedLinear, name: str, layer: int, x_ND: torch.Tensor, rows: Sequence[AdapterRows]
) -> torch.Tensor:
    """Base product plus each adapter's low-rank product on its own rows."""
    out = base(x_ND)
    for part in rows:
        low_rank = part.adapter.layers[layer].get(name)
        if low_rank is None:
            continue
        if part.index is None:
            out = low_rank.up.added_to(out, low_rank.down(x_ND))
        else:
            out.index_add_(0, part.index, low_rank.up(low_rank.down(x_ND.index_select(0, part.index))))
    return out


def load_adapter(name: str, folder: Path, config: LlamaConfig, dtype: torch.dtype, max_rank: int) -> Adapter:
    """Read a PEFT folder. Raises AdapterError."""
    settings = _settings(folder)
    try:
        tensors = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"cannot read {folder / ADAPTER_WEIGHTS}: {error}") from error
    rank, alpha = _rank_and_alpha(folder, settings)
    if not 1 <= rank <= max_rank:
        raise AdapterError(
            f"{folder}: rank {rank} is not between 1 and {max_rank}; start the engine with --max-lora-rank"
        )
    scaling = alpha / rank**0.5 if settings.get("use_rslora") else alpha / rank
    found = _by_module(folder, tensors)
    last = max(layer for layer, _, _ in found)
    if last >= config.num_layers:
        raise AdapterError(f"{folder}: there is a layer {last}, the model has {config.num_layers}; not this model's")
    layers = [
        {fused: low for fused in FUSED if (low := _fuse(folder, fused, layer, found, config, scaling, dtype))}
        for layer in range(config.num_layers)
    ]
    return Adapter(name=name, path=str(folder), rank=rank, layers=layers)


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = dict(json.loads((folder / "adapter_config.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise AdapterError(f"cannot read {folder / 'adapter_config.json'}: {error}") from error
    for key in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern"):
        if settings.get(key):
            raise AdapterError(f"{folder}: {key} is not supported by the embedded engine")
    if settings.get("bias", "none") != "none":
        raise AdapterError(f"{folder}: adapters with biases are not supported by the embedded engine")
    return settings


def _rank_and_alpha(folder: Path, settings: dict[str, Any]) -> tuple[int, float]:
    try:
        rank = int(settings.get("r", 0))
        return rank, float(settings.get("lora_alpha", rank))
    except (ValueError, TypeError) as error:
        raise AdapterError(f"{folder / 'adapter_config.json'}: r and lora_alpha are no numbers ({error})") from error


def _by_module(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[tuple[int, str, str], torch.Tensor]:
    known = {part for parts in FUSED.values() for part in parts}
    found = {}
    for key, tensor in tensors.items():
        match = _KEY.search(key)
        if match is None or match[2] not in known:
            raise AdapterError(f"{folder}: tensor {key} does not belong to a linear layer of a Llama decoder")
        found[int(match[1]), match[2], match[3]] = tensor
    half = next((key for key in found if (*key[:2], "B" if key[2] == "A" else "A") not in found), None)
    if half is not None:
        raise AdapterError(f"{folder}: layer {half[0]} {half[1]} has lora_{half[2]} alone; the other half is missing")
    if not found:
        raise AdapterError(f"{folder}: {ADAPTER_WEIGHTS} holds no LoRA tensors")
    return found


def _sizes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every part."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q_proj": (q_size, hidden),
        "k_proj": (kv_size, hidden),
        "v_proj": (kv_size, hidden),
        "o_proj": (hidden, q_size),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def _fuse(
    folder: Path,
    fused: str,
    layer: int,
    found: dict[tuple[int, str, str], torch.Tensor],
    config: LlamaConfig,
    scaling: float,
    dtype: torch.dtype,
) -> LowRank | None:
    """Stack the parts' A matrices and put their B matrices on a block diagonal."""
    sizes = _sizes(config)
    downs: list[torch.Tensor] = []
    ups: list[torch.Tensor] = []
    for part in FUSED[fused]:
        out_size, in_size = sizes[part]
        down, up = found.get((layer, part, "A")), found.get((layer, part, "B"))
        if down is None or up is None:
            down, up = torch.zeros(0, in_size), torch.zeros(out_size, 0)
        if down.shape[1] != in_size or up.shape[0] != out_size or down.shape[0] != up.shape[1]:
            raise AdapterError(
                f"{folder}: layer {layer} {part} has shapes {tuple(down.shape)}, {tuple(up.shape)}; not this model's"
            )
        if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
            raise AdapterError(f"{folder}: layer {layer} {part} holds NaN or infinite values")
        downs.append(down[:, config.head_channels] if part == "o_proj" and len(down) else down)
        ups.append((up[config.head_channels] if part == "q_proj" else up).float() * scaling)
    if sum(down.shape[0] for down in downs) == 0:
        return None
    return LowRank(PackedLinear(torch.cat(downs).to(dtype)), PackedLinear(torch.block_diag(*ups).to(dtype)))
