"""Loading: a base model folder and a PEFT adapter folder into the packed model, and the adapter back to disk."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gpu_workers.contracts.runspec import LoraSpec
from gpu_workers.trainer.llama import LlamaShape, LoraGroup, PackedLlama
from gpu_workers.trainer.world import assign

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PEFT_PREFIX = "base_model.model.model.layers"


class ModelLoadError(RuntimeError):
    """A model or adapter folder this trainer cannot use; says why."""


def compute_dtype(folder: Path) -> torch.dtype:
    """bfloat16 for bfloat16 weights where the processor multiplies it natively (AMX, AVX512-BF16), else float32."""
    if json.loads((folder / "config.json").read_text()).get("dtype") != "bfloat16":
        return torch.float32
    if torch.cuda.is_available():
        return torch.bfloat16
    flags = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if flags else torch.float32


def load_model(folder: Path, lora: LoraSpec, *, seed: int, dtype: torch.dtype | None = None) -> PackedLlama:
    """The base model with a fresh adapter (A uniform by seed as PEFT's kaiming, B zero). Raises ModelLoadError."""
    shape = read_shape(folder)
    dtype = dtype or compute_dtype(folder)
    model = PackedLlama(shape, rank=lora.rank, alpha=lora.alpha, dtype=dtype)
    try:
        tensors = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(
            f"{folder}/model.safetensors cannot be read ({error}); prepare the base model again"
        ) from error
    _fill_base(model, tensors, folder)
    initialise_adapter(model, seed)
    return model


def read_shape(folder: Path) -> LlamaShape:
    """Sizes from config.json; anything the packed forward pass does not compute is refused."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{folder} is not a model folder ({error}); prepare the base model first") from error
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


def _fill_base(model: PackedLlama, tensors: dict[str, Tensor], folder: Path) -> None:
    def take(name: str, into: Tensor) -> None:
        if name not in tensors or tensors[name].shape != into.shape:
            found = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise ModelLoadError(f"{folder}/model.safetensors: {name} should be {tuple(into.shape)}, found {found}")
        into.copy_(tensors[name])

    with torch.no_grad():
        take("model.embed_tokens.weight", model.embedding)
        take("model.norm.weight", model.norm)
        if not model.shape.tied_head:
            take("lm_head.weight", model.head)
        for index, layer in enumerate(model.decoder_layers()):
            prefix = f"model.layers.{index}"
            take(f"{prefix}.input_layernorm.weight", layer.input_norm)
            take(f"{prefix}.post_attention_layernorm.weight", layer.post_norm)
            for group in layer.groups:
                for name, part in zip(group.names, group.weight.split(group.outputs), strict=True):
                    take(f"{prefix}.{name}.weight", part)


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
    """Trainable parameters under their PEFT names, in a fixed order."""
    named: dict[str, nn.Parameter] = {}
    for index, layer in enumerate(model.decoder_layers()):
        for group in layer.groups:
            for name, a, b in zip(group.names, group.lora_a, group.lora_b, strict=True):
                named[f"{PEFT_PREFIX}.{index}.{name}.lora_A.weight"] = a
                named[f"{PEFT_PREFIX}.{index}.{name}.lora_B.weight"] = b
    return named


def save_adapter(tensors: dict[str, Tensor], folder: Path, *, lora: LoraSpec, base_name: str) -> tuple[str, int]:
    """Write a PEFT folder of tensors in the dtype to be served; returns (sha256, bytes) of its weights file."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous() for name, value in tensors.items()}
    data = save(tensors, metadata={"format": "pt"})
    (folder / ADAPTER_WEIGHTS).write_bytes(data)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": TARGET_MODULES,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return hashlib.sha256(data).hexdigest(), len(data)


def load_adapter(model: PackedLlama, folder: Path, *, lora: LoraSpec, sha256: str = "") -> None:
    """Start from another adapter. Rank, alpha, names and shapes must match; the digest too when given."""
    weights = folder / ADAPTER_WEIGHTS
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
        data = weights.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{folder} is not a PEFT adapter folder ({error})") from error
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise ModelLoadError(f"{weights} is damaged: its SHA-256 is not {sha256}; restore the checkpoint")
    if (config.get("r"), float(config.get("lora_alpha", 0))) != (lora.rank, float(lora.alpha)):
        raise ModelLoadError(
            f"{folder} has r={config.get('r')}, alpha={config.get('lora_alpha')}, but the run asks for "
            f"r={lora.rank}, alpha={lora.alpha}; set lora.rank and lora.alpha to the parent's"
        )
    copy_parameters(adapter_parameters(model), load_file(weights), source=str(weights))


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


__all__ = [
    "ADAPTER_CONFIG", "ADAPTER_WEIGHTS", "LoraGroup", "ModelLoadError", "adapter_parameters", "compute_dtype",
    "copy_parameters", "load_adapter", "load_model", "save_adapter",
]  # fmt: skip
