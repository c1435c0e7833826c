"""The embedded engine on a random port of this process, and adapters for the tiny model."""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from gpu_workers.engines.embedded.__main__ import parse_arguments
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.launch import build_engine, build_server
from gpu_workers.listening import listen
from gpu_workers.models.folder import write_json

torch.set_num_threads(1)
TINY = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}


def make_engine(model: Path, *options: str) -> Engine:
    """Not started."""
    return build_engine(parse_arguments(["--model", str(model), "--port", "0", *options]))


@contextlib.contextmanager
def serving(model: Path, *options: str) -> Iterator[tuple[str, Engine]]:
    """URL and engine of a running server."""
    engine = make_engine(model, *options)
    server = build_server(engine)
    listener = listen("127.0.0.1", 0)
    engine.start()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    limit = time.monotonic() + 20
    while not server.started and time.monotonic() < limit:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", engine
    finally:
        server.should_exit = True
        thread.join(10)
        engine.stop()
        listener.close()


def make_adapter(
    folder: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    std: float = 0.2,
    model: Mapping[str, int] = TINY,
    num_layers: int = 0,
) -> Path:
    """A PEFT folder with random matrices on every linear layer of a model, the tiny one unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    modules = _modules(model)
    for layer in range(num_layers or model["num_hidden_layers"]):
        for name, (out_size, in_size) in modules.items():
            key = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, in_size, generator=generator) * std
            tensors[f"{key}.lora_B.weight"] = torch.randn(out_size, rank, generator=generator) * std
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name.rpartition(".")[2] for name in modules],
    }
    write_json(folder / "adapter_config.json", config)
    return folder


def _modules(model: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """(out, in) of the linear layers of a Llama, from its config.json."""
    hidden, inner = model["hidden_size"], model["intermediate_size"]
    kv = hidden * model["num_key_value_heads"] // model["num_attention_heads"]
    return {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
