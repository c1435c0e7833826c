"""The packed forward and backward pass against Hugging Face's Llama with PEFT, and the adapter folder against PEFT."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import LlamaForCausalLM

from gpu_workers.contracts.runspec import LoraSpec
from gpu_workers.trainer.backend import BaseModel
from gpu_workers.trainer.export import save_adapter
from gpu_workers.trainer.llama import PackedLlama, TrainedParts
from gpu_workers.trainer.model import (
    ModelLoadError,
    adapter_parameters,
    load_adapter,
    load_model,
    read_shape,
)
from gpu_workers.trainer.packing import TokenSequence, pack

# PEFT 0.21 reads a property that transformers 5.24 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

LORA = LoraSpec(rank=4, alpha=8.0)
PARTS = TrainedParts(LORA, torch.float32)
TEMPERATURE = 0.7


@pytest.fixture
def model(base: BaseModel) -> PackedLlama:
    model = load_model(base.folder, PARTS, seed=3)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, parameter in adapter_parameters(model).items():
            if "lora_B" in name:
                parameter.normal_(0, 0.05, generator=generator)
    return model


@pytest.fixture
def reference(base: BaseModel, model: PackedLlama, tmp_path: Path) -> PeftModel:
    save_adapter(adapter_parameters(model), tmp_path, lora=LORA, base_name="tiny")
    plain = LlamaForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    return PeftModel.from_pretrained(plain, tmp_path, is_trainable=True)


def sequences() -> list[TokenSequence]:
    """A group with shared prefixes, a hole in a mask, a one-token episode, and an unrelated second prompt."""
    rng = np.random.default_rng(1)
    made = []
    for prompt in (rng.integers(4, 60, 70).tolist(), rng.integers(4, 60, 5).tolist()):
        for length in (1, 7, 30):
            completion = [4, *rng.integers(4, 60, length - 1).tolist()]
            mask = [0] * len(prompt) + [1] * length
            if length == 7:
                mask[len(prompt) + 3] = 0
            made.append(TokenSequence(np.array(prompt + completion, np.int32), np.array(mask, np.uint8)))
    return [*made, made[2]]


def separate_logprobs(reference: PeftModel, sequence: TokenSequence) -> torch.Tensor:
    tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
    logits = reference(tokens[None]).logits[0, :-1] / TEMPERATURE
    chosen = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    return chosen[torch.from_numpy(sequence.mask[1:] == 1)]


@pytest.mark.parametrize("limit", [10_000, 90])
def test_packed_equals_separate_sequences_in_value_and_gradient(model, reference, limit: int):
    items = sequences()
    weight = [0.3, -1.0, 0.5, 1.0, 0.7, -0.2, 2.0]
    expected = [separate_logprobs(reference, item) for item in items]
    sum((w * values.sum() for w, values in zip(weight, expected, strict=True)), torch.tensor(0.0)).backward()
    rows = pack(items, max_row_tokens=limit)
    assert len(rows) == (1 if limit > 1000 else 4)
    for row in rows:
        logprob = model(row, TEMPERATURE).logprob_U
        values = logprob[torch.from_numpy(row.edge_T)]
        for index, want in enumerate(expected):
            mine = values[torch.from_numpy(row.sequence_T == index)]
            if len(mine):
                torch.testing.assert_close(mine, want, atol=2e-5, rtol=1e-5)
        (values * torch.tensor(weight)[torch.from_numpy(row.sequence_T)]).sum().backward()
    theirs = {name.replace(".default", ""): p.grad for name, p in reference.named_parameters() if p.requires_grad}
    ours = adapter_parameters(model)
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        torch.testing.assert_close(
            parameter.grad, theirs[name], atol=1e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_entropy_is_that_of_the_distribution_at_the_temperature(model, reference):
    (row,) = pack(sequences()[:1], max_row_tokens=1000)
    entropy = model(row, TEMPERATURE).entropy_U
    tokens = torch.from_numpy(row.tokens_N)[None]
    log_p = (reference(tokens).logits[0, int(row.source_U[0])] / TEMPERATURE).log_softmax(-1)
    assert float(entropy[0]) == pytest.approx(float(-(log_p.exp() * log_p).sum().detach()), rel=1e-5)


def test_a_fresh_adapter_changes_nothing_and_follows_the_seed(base: BaseModel):
    one, same, other = (load_model(base.folder, PARTS, seed=seed) for seed in (1, 1, 2))
    (row,) = pack(sequences()[:1], max_row_tokens=1000)
    assert all(not p.any() for name, p in adapter_parameters(one).items() if "lora_B" in name)
    assert torch.equal(one(row)[0], other(row)[0])
    for (name, left), right, third in zip(
        adapter_parameters(one).items(),
        adapter_parameters(same).values(),
        adapter_parameters(other).values(),
        strict=True,
    ):
        assert torch.equal(left, right)
        assert "lora_B" in name or not torch.equal(left, third)


def test_an_adapter_survives_the_round_trip(base: BaseModel, model: PackedLlama, tmp_path: Path):
    sha256 = save_adapter(adapter_parameters(model), tmp_path, lora=LORA, base_name="tiny")
    copy = load_model(base.folder, PARTS, seed=77)
    load_adapter(copy, tmp_path, sha256=sha256)
    for left, right in zip(adapter_parameters(model).values(), adapter_parameters(copy).values(), strict=True):
        assert torch.equal(left, right)


def test_a_wrong_adapter_is_refused_with_the_reason(base: BaseModel, model: PackedLlama, tmp_path: Path):
    save_adapter(adapter_parameters(model), tmp_path, lora=LORA, base_name="tiny")
    with pytest.raises(ModelLoadError, match=r"set lora\.rank"):
        load_adapter(load_model(base.folder, TrainedParts(LoraSpec(rank=8), torch.float32), seed=0), tmp_path)
    with pytest.raises(ModelLoadError, match="damaged"):
        load_adapter(model, tmp_path, sha256="0" * 64)
    with pytest.raises(ModelLoadError, match="not a PEFT adapter folder"):
        load_adapter(model, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"model_type": "gpt2"}, "model_type"), ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling")],
)
def test_a_model_it_would_compute_wrongly_is_refused(base: BaseModel, tmp_path: Path, change: dict, named: str):
    config = json.loads((base.folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=named):
        read_shape(tmp_path)


def test_missing_weights_are_named(base: BaseModel, tmp_path: Path):
    config = json.loads((base.folder / "config.json").read_text()) | {"num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((base.folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelLoadError, match=r"model\.layers\.2"):
        load_model(tmp_path, PARTS, seed=0)
