"""A tiny Llama-style model with a character tokenizer, so that the whole path runs in seconds in tests."""

import json
import string
from pathlib import Path
from typing import Any

from gpu_workers.models.folder import WEIGHTS, building, describe, is_complete, model_folder, write_json

NAME = "tiny"
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unk|>"]
EOS_ID = SPECIAL_TOKENS.index("<|im_end|>")
CHARACTERS = "\n" + "".join(c for c in string.printable if c.isprintable())
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN_SIZE = 128
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
INTERMEDIATE_SIZE = 384
CONTEXT_LENGTH = 1024
INIT_STD = 0.05


def prepare(home: Path, *, seed: int = 0, name: str = NAME) -> Path:
    """Folder of the tiny model below `home`, built on first use. The same seed gives the same bytes."""
    target = model_folder(home, name)
    if not is_complete(target):
        with building(target) as folder:
            build(folder, seed=seed)
            describe(folder, name)
    return target


def build(folder: Path, *, seed: int = 0) -> None:
    """Write config, tokenizer, chat template and randomly initialised float32 weights to `folder`."""
    vocabulary = [*SPECIAL_TOKENS, *CHARACTERS]
    write_json(folder / "config.json", _config(len(vocabulary)))
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": EOS_ID, "pad_token_id": EOS_ID})
    _write_tokenizer(folder, vocabulary)
    _write_weights(folder, len(vocabulary), seed)


def _config(vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HIDDEN_SIZE // NUM_HEADS,
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "bos_token_id": SPECIAL_TOKENS.index("<|im_start|>"),
        "eos_token_id": EOS_ID,
        "pad_token_id": EOS_ID,
    }


def _write_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<|unk|>"))  # noqa: S106 (a vocabulary entry)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|unk|>",
        "model_max_length": CONTEXT_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", json.loads(json.dumps(settings)))


def _write_weights(folder: Path, vocab_size: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * INIT_STD

    kv_size = HIDDEN_SIZE // NUM_HEADS * NUM_KV_HEADS
    tensors = {
        "model.embed_tokens.weight": normal(vocab_size, HIDDEN_SIZE),
        "model.norm.weight": torch.ones(HIDDEN_SIZE),
    }
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": normal(HIDDEN_SIZE, HIDDEN_SIZE),
            f"{prefix}.self_attn.k_proj.weight": normal(kv_size, HIDDEN_SIZE),
            f"{prefix}.self_attn.v_proj.weight": normal(kv_size, HIDDEN_SIZE),
            f"{prefix}.self_attn.o_proj.weight": normal(HIDDEN_SIZE, HIDDEN_SIZE),
            f"{prefix}.mlp.gate_proj.weight": normal(INTERMEDIATE_SIZE, HIDDEN_SIZE),
            f"{prefix}.mlp.up_proj.weight": normal(INTERMEDIATE_SIZE, HIDDEN_SIZE),
            f"{prefix}.mlp.down_proj.weight": normal(HIDDEN_SIZE, INTERMEDIATE_SIZE),
            f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN_SIZE),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN_SIZE),
        }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
