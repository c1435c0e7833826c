"""The tiny model: same bytes for the same seed, readable by transformers, characters as tokens."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpu_workers.models import tiny
from gpu_workers.models.folder import ModelError, file_sha256, is_complete, read_description


def test_a_seed_gives_the_same_bytes_and_another_other_ones(tmp_path: Path) -> None:
    folders = [tiny.prepare(tmp_path / str(index), seed=seed) for index, seed in enumerate((0, 0, 1))]
    prints = [read_description(folder).fingerprint for folder in folders]
    assert prints[0] == prints[1] != prints[2]
    assert prints[0] == file_sha256(folders[0] / "model.safetensors")


def test_the_description_says_what_it_is(tiny_model: Path) -> None:
    description = read_description(tiny_model)
    assert (description.name, description.dtype, description.context_length) == ("tiny", "float32", 1024)
    assert description.eos_ids == [2]


def test_prepared_once(tmp_path: Path) -> None:
    folder = tiny.prepare(tmp_path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny.prepare(tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_half_made_folder_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"torn")
    assert not is_complete(folder)
    assert is_complete(tiny.prepare(tmp_path))
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_transformers_reads_it(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert 350_000 < sum(parameter.numel() for parameter in model.parameters()) < 450_000
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token_id == 2


def test_text_survives_the_tokenizer(tiny_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    text = "<|im_start|>user\nadd(a=1, b='two')  {\"x\": [3]}<|im_end|>\n"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids[0] == 1
    assert tokenizer.encode("é").ids == [3]


def test_a_folder_that_is_no_model_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"python -m gpu_workers\.models"):
        read_description(tmp_path)
