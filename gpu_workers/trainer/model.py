"""Loading: a base model folder and a PEFT adapter folder into the packed model. Writing them is `export`'s."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gpu_workers.contracts.checkpoints import ADAPTER_WEIGHTS
from gpu_workers.contracts.runspec import ComputeDtype
from gpu_workers.models.folder import file_sha256
from gpu_workers.trainer.llama import LlamaShape, PackedLlama, TrainedParts
from gpu_workers.trainer.world import assign, whole

WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PEFT_PREFIX = "base_model.model.model.layers"


class ModelLoadError(RuntimeError):
    """A model or adapter folder this trainer cannot use; says why."""


def compute_dtype(folder: Path, asked: ComputeDtype = ComputeDtype.AUTO) -> torch.dtype:
    """As asked; else bfloat16 for bfloat16 weights where the processor multiplies it natively (AMX, AVX512-BF16)."""
    if asked is not ComputeDtype.AUTO:
        return torch.bfloat16 if asked is ComputeDtype.BFLOAT16 else torch.float32
    if torch.cuda.is_available() or stored_dtype(folder) is torch.float32:
        return stored_dtype(folder)
    flags = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if flags else torch.float32


def stored_dtype(folder: Path) -> torch.dtype:
    """Of the weights of a model folder: bfloat16 or float32."""
    config = read_json(folder / "config.json")
    return torch.bfloat16 if (config.get("dtype") or config.get("torch_dtype")) == "bfloat16" else torch.float32


def read_json(path: Path) -> dict[str, Any]:
    """A configuration file. Raises ModelLoadError."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{path.parent} is not the folder it should be ({error}); prepare the model first"
        ) from error
    return found


def load_model(folder: Path, parts: TrainedParts, *, seed: int) -> PackedLlama:
    """The base model, with a fresh adapter where one is trained (A uniform by seed as PEFT's kaiming, B zero).

    Raises ModelLoadError.
    """
    model = PackedLlama(read_shape(folder), parts)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{folder}/{WEIGHTS} cannot be read ({error}); prepare the base model again") from error
    _fill_base(model, tensors, folder)
    initialise_adapter(model, seed)
    return model


def read_shape(folder: Path) -> LlamaShape:
    """Sizes from config.json; anything the packed forward pass does not compute is refused."""
    config = read_json(folder / "config.json")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    unsupported = {
        "model_type": config.get("model_type") != "llama",
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "rope_scaling": rope.get("rope_type", rope.get("type", "default")) != "default",
    }
    if any(unsupported.values()):
        named = ", ".join(f"{key}={config.get(key)!r}" for key, bad in unsupported.items() if bad)
        raise ModelLoadError(f"{folder}/config.json: this trainer reads plain Llama models, not {named}")
    heads = int(config["num_attention_heads"])
    return LlamaShape(
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
        norm_epsilon=float(config["rms_norm_eps"]),
        rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        context_length=int(config["max_position_embeddings"]),
        tied_head=bool(config.get("tie_word_embeddings", False)),
    )


@dataclass(frozen=True)
class BaseWeight:
    """A Hugging Face tensor as rows of one of our parameters, where layers with a common input lie side by side."""

    name: str
    parameter: nn.Parameter
    start: int = 0
    stop: int | None = None  # None: to the end
    adapter: tuple[nn.Parameter, nn.Parameter, float] | None = None  # A, B and the scale of its product

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    def value(self) -> Tensor:
        """The whole tensor, the adapter's product added; collective when sharded."""
        found = whole(self.parameter)[self.rows]
        if self.adapter is None:
            return found
        a, b, scale = self.adapter
        return (found.float() + scale * (whole(b) @ whole(a))).to(found.dtype)


def base_weights(model: PackedLlama) -> Iterator[BaseWeight]:
    """Every tensor of the base model under its Hugging Face name."""
    yield BaseWeight("model.embed_tokens.weight", model.embedding)
    yield BaseWeight("model.norm.weight", model.norm)
    if not model.shape.tied_head:
        yield BaseWeight("lm_head.weight", model.head)
    for index, layer in enumerate(model.decoder_layers()):
        prefix = f"model.layers.{index}"
        yield BaseWeight(f"{prefix}.input_layernorm.weight", layer.input_norm)
        yield BaseWeight(f"{prefix}.post_attention_layernorm.weight", layer.post_norm)
        for group in layer.groups:
            start = 0
            for number, (name, size) in enumerate(zip(group.names, group.outputs, strict=True)):
                adapter = (group.lora_a[number], group.lora_b[number], group.scale) if group.adapted else None
                yield BaseWeight(f"{prefix}.{name}.weight", group.weight, start, start + size, adapter)
                start += size


def _fill_base(model: PackedLlama, tensors: dict[str, Tensor], folder: Path) -> None:
    with torch.no_grad():
        for weight in base_weights(model):
            into = weight.parameter[weight.rows]
            if weight.name not in tensors or tensors[weight.name].shape != into.shape:
                found = tuple(tensors[weight.name].shape) if weight.name in tensors else "nothing"
                raise ModelLoadError(f"{folder}/{WEIGHTS}: {weight.name} should be {tuple(into.shape)}, found {found}")
            into.copy_(tensors[weight.name])


def initialise_adapter(model: PackedLlama, seed: int) -> None:
    """PEFT's initialisation, kaiming_uniform(a=√5) for A and zeros for B, from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapter_parameters(model).items():
            if ".lora_A." in name:
                bound = parameter.shape[1] ** -0.5
                parameter.uniform_(-bound, bound, generator=generator)
            else:
                parameter.zero_()


def adapter_parameters(model: PackedLlama) -> dict[str, nn.Parameter]:
    """The adapter's parameters under their PEFT names, in a fixed order; none where every weight is trained."""
    named: dict[str, nn.Parameter] = {}
    for index, layer in enumerate(model.decoder_layers()):
        for group in layer.groups if model.parts.lora else ():
            for name, a, b in zip(group.names, group.lora_a, group.lora_b, strict=True):
                named[f"{PEFT_PREFIX}.{index}.{name}.lora_A.weight"] = a
                named[f"{PEFT_PREFIX}.{index}.{name}.lora_B.weight"] = b
    return named


def trained_parameters(model: PackedLlama) -> dict[str, nn.Parameter]:
    """What the optimiser steps, by name, in a fixed order: an adapter under its PEFT names, or every weight."""
    named = adapter_parameters(model) if model.parts.lora else dict(model.named_parameters())
    if model.value_head is not None:
        named |= {f"value_head.{name}": value for name, value in model.value_head.named_parameters()}
    return named


def load_adapter(model: PackedLlama, folder: Path, *, sha256: str = "") -> None:
    """Start from an adapter: as the one to be trained on, or added into the weights where those are trained.

    The digest must match when given; names and shapes always; rank and alpha where the adapter is trained on.
    """
    weights = folder / ADAPTER_WEIGHTS
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        data = weights.read_bytes()
        tensors = load_file(weights)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelLoadError(f"{folder} is not a PEFT adapter folder ({error})") from error
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise ModelLoadError(f"{weights} is damaged: its SHA-256 is not {sha256}; restore the checkpoint")
    lora = model.parts.lora
    if lora is None:
        _add_adapter(model, tensors, float(config["lora_alpha"]) / float(config["r"]), source=str(weights))
        return
    if (config.get("r"), float(config.get("lora_alpha", 0))) != (lora.rank, float(lora.alpha)):
        raise ModelLoadError(
            f"{folder} has r={config.get('r')}, alpha={config.get('lora_alpha')}, but the run asks for "
            f"r={lora.rank}, alpha={lora.alpha}; set lora.rank and lora.alpha to the parent's"
        )
    copy_parameters(adapter_parameters(model), tensors, source=str(weights))


def load_whole(model: PackedLlama, folder: Path, *, sha256: str = "") -> None:
    """Start from whole weights in a Hugging Face folder; where an adapter is trained they would not be the base's."""
    weights = folder / WEIGHTS
    if model.parts.lora is not None:
        raise ModelLoadError(f"{weights} holds whole weights, not an adapter: set trainer.update to full")
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{weights} cannot be read ({error}); restore the checkpoint") from error
    if sha256 and file_sha256(weights) != sha256:
        raise ModelLoadError(f"{weights} is damaged: its SHA-256 is not {sha256}; restore the checkpoint")
    values: dict[nn.Parameter, Tensor] = {}
    for weight in base_weights(model):
        value = values.setdefault(weight.parameter, whole(weight.parameter).clone())
        into = value[weight.rows]
        if weight.name not in tensors or tensors[weight.name].shape != into.shape:
            found = tuple(tensors[weight.name].shape) if weight.name in tensors else "nothing"
            raise ModelLoadError(f"{weights}: {weight.name} should be {tuple(into.shape)}, found {found}")
        into.copy_(tensors[weight.name])
    for parameter, value in values.items():
        assign(parameter, value)


def _add_adapter(model: PackedLlama, tensors: dict[str, Tensor], scale: float, *, source: str) -> None:
    """Weights plus scale·B·A, all of the adapter's tensors or none."""
    left = dict(tensors)
    changes = []
    for weight in base_weights(model):
        stem = f"base_model.model.{weight.name.removesuffix('.weight')}"
        a, b = (left.pop(f"{stem}.lora_{letter}.weight", None) for letter in "AB")
        if a is not None and b is not None:
            changes.append((weight, scale * (b.float() @ a.float())))
    if left:
        raise ModelLoadError(f"{source} does not fit the model: {len(left)} unknown, e.g. {sorted(left)[0]}")
    with torch.no_grad():
        for weight, change in changes:
            value = whole(weight.parameter).clone()
            value[weight.rows] += change
            assign(weight.parameter, value)


def copy_parameters(parameters: dict[str, nn.Parameter], tensors: dict[str, Tensor], *, source: str) -> None:
    """Copy by name; every name and shape must match."""
    missing, extra = parameters.keys() - tensors.keys(), tensors.keys() - parameters.keys()
    if missing or extra:
        example = sorted(missing or extra)[0]
        raise ModelLoadError(
            f"{source} does not fit the model: {len(missing)} missing, {len(extra)} unknown, e.g. {example}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if tensors[name].shape != parameter.shape:
                raise ModelLoadError(
                    f"{source}: {name} is {tuple(tensors[name].shape)}, the model needs {tuple(parameter.shape)}"
                )
            assign(parameter, tensors[name])
