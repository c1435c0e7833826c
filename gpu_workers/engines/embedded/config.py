"""What the engine knows of a model folder: shapes, rotary settings, end tokens; refuses what it cannot run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class EngineConfigError(ValueError):
    """A model folder or option this engine cannot serve; the message says what and what to do."""


@dataclass(frozen=True)
class LlamaConfig:
    """Shapes of a Llama-family decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_eps: float
    rope_theta: float
    tied_embeddings: bool
    eos_ids: frozenset[int]
    dtype: str
    fingerprint: str

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def head_channels(self) -> list[int]:
        """Channels of the query heads in the order this engine computes them: [R, KVH, D], models have [KVH, R, D].

        So ordered, rows and their query heads form one axis without a copy. q_proj and o_proj follow.
        """
        per_kv, dim = self.queries_per_kv, self.head_dim
        heads = [kv * per_kv + query for query in range(per_kv) for kv in range(self.num_kv_heads)]
        return [head * dim + channel for head in heads for channel in range(dim)]


def read_config(folder: Path) -> LlamaConfig:
    """Read a Hugging Face folder. Raises EngineConfigError."""
    raw = _json(folder / "config.json")
    if raw.get("model_type") != "llama":
        raise EngineConfigError(
            f"{folder}: model_type is {raw.get('model_type')!r}; the embedded engine runs Llama-family models only, "
            f"use SGLang"
        )
    _refuse_unsupported(folder, raw)
    rope = raw.get("rope_parameters") or {}
    heads = int(raw["num_attention_heads"])
    return LlamaConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        context_length=int(raw["max_position_embeddings"]),
        rms_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_ids=frozenset(_eos_ids(folder, raw)),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        fingerprint=_fingerprint(folder),
    )


def _refuse_unsupported(folder: Path, raw: dict[str, Any]) -> None:
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    problems = []
    if kind != "default":
        problems.append(f"rotary scaling {kind!r}")
    if raw.get("hidden_act", "silu") != "silu":
        problems.append(f"activation {raw['hidden_act']!r}")
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        problems.append("biases in linear layers")
    if raw.get("quantization_config"):
        problems.append("quantised weights")
    if problems:
        raise EngineConfigError(f"{folder}: {', '.join(problems)} not supported by the embedded engine, use SGLang")


def _eos_ids(folder: Path, raw: dict[str, Any]) -> list[int]:
    generation = folder / "generation_config.json"
    value = _json(generation).get("eos_token_id") if generation.exists() else None
    value = raw.get("eos_token_id") if value is None else value
    return [] if value is None else [int(v) for v in value] if isinstance(value, list) else [int(value)]


def _fingerprint(folder: Path) -> str:
    description = folder / "ratchet_model.json"
    return str(_json(description).get("fingerprint", "")) if description.exists() else ""


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise EngineConfigError(f"cannot read {path}: {error}; give the folder of a prepared model") from error
