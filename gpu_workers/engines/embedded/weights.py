"""The base weights of a model in the form the forward pass wants: fused, packed, one dtype."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

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


class _Source:
    """Named tensors, checked, in the engine's dtype; the digest is of all that were taken."""

    def __init__(self, where: str, dtype: torch.dtype) -> None:
        self.where, self.dtype = where, dtype
        self.digest = hashlib.sha256(str(dtype).encode())

    def names(self) -> Collection[str]:
        raise NotImplementedError

    def read(self, name: str) -> torch.Tensor:
        raise NotImplementedError

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Raises EngineConfigError naming the tensor."""
        if name not in self.names():
            raise EngineConfigError(f"{self.where}: tensor {name} is missing; it is not the model its config says")
        tensor = self.read(name)
        if tuple(tensor.shape) != shape:
            raise EngineConfigError(f"{self.where}: tensor {name} has shape {tuple(tensor.shape)}, config says {shape}")
        tensor = tensor.to(self.dtype).contiguous()
        self.digest.update(name.encode())
        self.digest.update(tensor.view(torch.uint8).numpy().data)
        return tensor


class _Folder(_Source):
    """All safetensors files of a folder, read one tensor at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        super().__init__(str(folder), dtype)
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise EngineConfigError(f"{folder}: no .safetensors file; give the folder of a prepared model")
        try:
            self.handles = [safe_open(file, framework="pt") for file in files]
        except (SafetensorError, OSError) as error:
            raise EngineConfigError(f"{folder}: weights cannot be read ({error}); fetch the model again") from error
        self.owner = {name: handle for handle in self.handles for name in handle.keys()}  # noqa: SIM118 (no __iter__)

    def names(self) -> Collection[str]:
        return self.owner

    def read(self, name: str) -> torch.Tensor:
        return cast(torch.Tensor, self.owner[name].get_tensor(name))


class _Received(_Source):
    """Tensors that came over a network."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        super().__init__("the weights that were sent", dtype)
        self.tensors = tensors

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def read(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def load_weights(folder: Path, config: LlamaConfig, dtype: torch.dtype) -> LlamaWeights:
    """Read, fuse and pack. Raises EngineConfigError naming the tensor."""
    return _pack(_Folder(folder, dtype), config)


def pack_weights(tensors: Mapping[str, torch.Tensor], config: LlamaConfig, dtype: torch.dtype) -> LlamaWeights:
    """Fuse and pack a whole set of tensors. Raises EngineConfigError naming the tensor."""
    return _pack(_Received(tensors, dtype), config)


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Of every tensor that a set of weights has to hold."""
    shapes = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "self_attn.q_proj": (q_size, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, q_size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }


def _pack(source: _Source, config: LlamaConfig) -> LlamaWeights:
    embedding = source.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size).clone()
    has_head = "lm_head.weight" in source.names() and not config.tied_embeddings
    head = source.take("lm_head.weight", config.vocab_size, config.hidden_size) if has_head else embedding
    layers = tuple(_pack_layer(source, config, index) for index in range(config.num_layers))
    norm = source.take("model.norm.weight", config.hidden_size).clone()
    return LlamaWeights(embedding, layers, norm, PackedLinear(head), source.dtype, source.digest.hexdigest())


def _pack_layer(source: _Source, config: LlamaConfig, index: int) -> LayerWeights:
    shapes = _layer_shapes(config)

    def take(name: str) -> torch.Tensor:
        return source.take(f"model.layers.{index}.{name}.weight", *shapes[name])

    key, value = take("self_attn.k_proj"), take("self_attn.v_proj")
    query = take("self_attn.q_proj")[config.head_channels]
    gate, up = take("mlp.gate_proj"), take("mlp.up_proj")

    return LayerWeights(
        input_norm=take("input_layernorm").clone(),
        qkv=PackedLinear(torch.cat([query, key, value])),
        output=PackedLinear(take("self_attn.o_proj")[:, config.head_channels]),
        post_norm=take("post_attention_layernorm").clone(),
        gate_up=PackedLinear(torch.cat([gate, up])),
        down=PackedLinear(take("mlp.down_proj")),
    )
