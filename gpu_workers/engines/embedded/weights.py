"""The base weights of a model in the form the forward pass wants: fused, packed, one dtype."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from gpu_workers.engines.embedded.config import EngineConfigError, LlamaConfig
from gpu_workers.engines.embedded.linear import PackedLinear

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. qkv and gate_up are the row-wise concatenations of their parts."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    output: PackedLinear
    post_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True)
class LlamaWeights:
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: PackedLinear
    dtype: torch.dtype
    digest: str  # of every tensor as it was read, before packing


class _Reader:
    """Named tensors over all safetensors files of a folder, read one at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.folder, self.dtype = folder, dtype
        self.digest = hashlib.sha256(str(dtype).encode())
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise EngineConfigError(f"{folder}: no .safetensors file; give the folder of a prepared model")
        try:
            self.handles = [safe_open(file, framework="pt") for file in files]
        except (SafetensorError, OSError) as error:
            raise EngineConfigError(f"{folder}: weights cannot be read ({error}); fetch the model again") from error
        self.owner = {name: handle for handle in self.handles for name in handle.keys()}  # noqa: SIM118 (no __iter__)

    def __contains__(self, name: str) -> bool:
        return name in self.owner

    def get(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self.owner:
            raise EngineConfigError(
                f"{self.folder}: tensor {name} is missing; the folder is not the model its config says"
            )
        tensor = self.owner[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise EngineConfigError(
                f"{self.folder}: tensor {name} has shape {tuple(tensor.shape)}, config says {shape}"
            )
        tensor = tensor.to(self.dtype).contiguous()
        self.digest.update(name.encode())
        self.digest.update(tensor.view(torch.uint8).numpy().data)
        return tensor


def load_weights(folder: Path, config: LlamaConfig, dtype: torch.dtype) -> LlamaWeights:
    """Read, fuse and pack. Raises EngineConfigError naming the tensor."""
    reader = _Reader(folder, dtype)
    embedding = reader.get("model.embed_tokens.weight", config.vocab_size, config.hidden_size).clone()
    has_head = "lm_head.weight" in reader and not config.tied_embeddings
    head = reader.get("lm_head.weight", config.vocab_size, config.hidden_size) if has_head else embedding
    layers = tuple(_load_layer(reader, config, index) for index in range(config.num_layers))
    norm = reader.get("model.norm.weight", config.hidden_size).clone()
    return LlamaWeights(embedding, layers, norm, PackedLinear(head), dtype, reader.digest.hexdigest())


def _load_layer(reader: _Reader, config: LlamaConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def read(name: str, out_size: int, in_size: int) -> torch.Tensor:
        return reader.get(f"{prefix}.{name}.weight", out_size, in_size)

    key, value = read("self_attn.k_proj", kv_size, hidden), read("self_attn.v_proj", kv_size, hidden)
    query = read("self_attn.q_proj", q_size, hidden)[config.head_channels]
    gate, up = read("mlp.gate_proj", inner, hidden), read("mlp.up_proj", inner, hidden)

    return LayerWeights(
        input_norm=reader.get(f"{prefix}.input_layernorm.weight", hidden).clone(),
        qkv=PackedLinear(torch.cat([query, key, value])),
        output=PackedLinear(read("self_attn.o_proj", hidden, q_size)[:, config.head_channels]),
        post_norm=reader.get(f"{prefix}.post_attention_layernorm.weight", hidden).clone(),
        gate_up=PackedLinear(torch.cat([gate, up])),
        down=PackedLinear(read("mlp.down_proj", hidden, inner)),
    )
