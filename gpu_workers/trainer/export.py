"""Policies on disk as others read them: a PEFT adapter folder, or a Hugging Face model folder in safetensors.

`python -m gpu_workers.trainer.export BASE ADAPTER OUTPUT` merges an adapter into its base model.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from gpu_workers.contracts.checkpoints import ADAPTER_WEIGHTS
from gpu_workers.contracts.runspec import LoraSpec
from gpu_workers.models.folder import DESCRIPTION, building, describe, file_sha256
from gpu_workers.trainer.llama import PackedLlama, TrainedParts
from gpu_workers.trainer.model import (
    ADAPTER_CONFIG,
    TARGET_MODULES,
    WEIGHTS,
    ModelLoadError,
    adapter_parameters,
    base_weights,
    load_adapter,
    load_model,
    read_json,
    stored_dtype,
)
from gpu_workers.trainer.world import ALONE, World, whole

# Beside the weights a model folder holds its configuration, tokenizer and chat template: copied as they are.
_NOT_COPIED = {WEIGHTS, DESCRIPTION}


def write_adapter(model: PackedLlama, folder: Path, *, base_name: str, world: World) -> str:
    """Write a PEFT folder in the dtype that is computed with; returns the SHA-256 of its weights file.

    Collective; rank 0 writes, and the others get an empty digest.
    """
    assert model.parts.lora is not None
    tensors = {name: whole(value).to("cpu", model.dtype) for name, value in adapter_parameters(model).items()}
    return save_adapter(tensors, folder, lora=model.parts.lora, base_name=base_name) if world.is_main else ""


def save_adapter(tensors: dict[str, Tensor], folder: Path, *, lora: LoraSpec, base_name: str) -> str:
    """A PEFT folder of these tensors; returns the SHA-256 of its weights file."""
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
    digest = _write_tensors(tensors, folder / ADAPTER_WEIGHTS)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    return digest


def write_model(model: PackedLlama, folder: Path, *, base_folder: Path, world: World) -> str:
    """Write the whole policy, an adapter merged in, as a folder that transformers loads; returns the weights' SHA-256.

    In the dtype that is computed with. Collective; rank 0 writes, and the others get an empty digest.
    """
    dtype = model.dtype
    tensors = {}
    for weight in base_weights(model):
        value = weight.value()  # collective
        if world.is_main:
            tensors[weight.name] = value.to("cpu", dtype)
    if not world.is_main:
        return ""
    digest = _write_tensors(tensors, folder / WEIGHTS)
    for file in base_folder.iterdir():
        if file.is_file() and file.name not in _NOT_COPIED:
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return digest


def _write_tensors(tensors: dict[str, Tensor], path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, path, metadata={"format": "pt"})
    return file_sha256(path)


def merge_adapter(base_folder: Path, adapter: Path, output: Path) -> None:
    """A prepared model folder of the base model with the adapter added to its weights. Raises ModelLoadError."""
    config = read_json(adapter / ADAPTER_CONFIG)
    lora = LoraSpec(rank=int(config["r"]), alpha=float(config["lora_alpha"]))
    model = load_model(base_folder, TrainedParts(lora, stored_dtype(base_folder)), seed=0)
    load_adapter(model, adapter)
    with building(output) as folder:
        write_model(model, folder, base_folder=base_folder, world=ALONE)
        describe(folder, output.name)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_workers.trainer.export", description="merge an adapter into its model"
    )
    parser.add_argument("base", type=Path, help="folder of the base model")
    parser.add_argument("adapter", type=Path, help="PEFT folder, as in a checkpoint's adapter/")
    parser.add_argument("output", type=Path, help="folder to be made")
    options = parser.parse_args(arguments)
    try:
        merge_adapter(options.base, options.adapter, options.output)
    except (ModelLoadError, OSError) as error:
        sys.stderr.write(f"export: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
