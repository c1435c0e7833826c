"""Training every weight: against Hugging Face's Llama in value and gradient, on disk and back, from an adapter."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from gpu_workers.contracts.runspec import LoraSpec
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import file_sha256, read_description
from gpu_workers.trainer import export
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.export import save_adapter, write_model
from gpu_workers.trainer.llama import PackedLlama, TrainedParts
from gpu_workers.trainer.model import ModelLoadError, adapter_parameters, base_weights, load_adapter, load_model
from gpu_workers.trainer.packing import pack
from gpu_workers.trainer.publishing import CheckpointPublisher
from gpu_workers.trainer.world import ALONE
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec
from tests.unit.gpu_workers.trainer.test_model import TEMPERATURE, separate_logprobs, sequences

FULL = TrainedParts(None, torch.float32)
LORA = LoraSpec(rank=4, alpha=8.0)


def row_values(model: PackedLlama, limit: int) -> torch.Tensor:
    """Σ of weighted log-probs and entropies of all sequences, whatever the rows."""
    total = torch.zeros(())
    for row in pack(sequences(), max_row_tokens=limit):
        output = model(row, TEMPERATURE)
        weight = torch.from_numpy(1.0 + 0.1 * row.sequence_T).float()
        total = total + (output.logprob_U[torch.from_numpy(row.edge_T)] * weight).sum()
    return total


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("limit", [10_000, 90])
def test_packed_equals_separate_sequences_in_value_and_every_gradient(base: BaseModel, limit: int, recompute: bool):
    model = load_model(base.folder, TrainedParts(None, torch.float32, recompute_layers=recompute), seed=0)
    reference = LlamaForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    expected = sum(
        ((1.0 + 0.1 * index) * separate_logprobs(reference, item).sum() for index, item in enumerate(sequences())),
        torch.tensor(0.0),
    )
    expected.backward()
    found = row_values(model, limit)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    theirs = dict(reference.named_parameters())
    for weight in base_weights(model):
        mine = weight.parameter.grad[weight.rows]
        torch.testing.assert_close(
            mine, theirs[weight.name].grad, atol=2e-4, rtol=2e-3, msg=lambda m, n=weight.name: f"{n}: {m}"
        )


def test_masters_stay_float32_where_the_computation_is_bfloat16(base: BaseModel):
    model = load_model(base.folder, TrainedParts(None, torch.bfloat16), seed=0)
    (row,) = pack(sequences()[:1], max_row_tokens=1000)
    output = model(row, TEMPERATURE)
    assert (output.logprob_U.dtype, output.entropy_U.dtype) == (torch.float32, torch.float32)
    assert model.hidden(row).dtype == torch.bfloat16
    output.logprob_U.sum().backward()
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
    exact = load_model(base.folder, FULL, seed=0)(row, TEMPERATURE).logprob_U
    torch.testing.assert_close(output.logprob_U, exact, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("update", ["lora", "full"])
def test_an_exported_policy_is_what_transformers_loads(base: BaseModel, tmp_path: Path, update: str):
    trainer = PolicyTrainer(make_spec(trainer={"update": update}), base)
    trainer.step("b", make_groups(0))
    digest = write_model(trainer.policy.model, tmp_path / "model", base_folder=base.folder, world=ALONE)
    assert len(digest) == 64
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.dtype == torch.float32
    for item in sequences()[:3]:
        (row,) = pack([item], max_row_tokens=1000)
        with torch.no_grad():
            mine = trainer.policy.model(row, TEMPERATURE).logprob_U
            torch.testing.assert_close(separate_logprobs(loaded, item), mine, atol=2e-5, rtol=1e-4)
    assert (tmp_path / "model" / "tokenizer.json").is_file()
    assert not (tmp_path / "model" / "ratchet_model.json").exists(), "it describes other bytes"


def test_the_command_merges_an_adapter_into_a_prepared_model(
    base: BaseModel, adapter: tuple[PackedLlama, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    adapted, folder = adapter
    assert export.main([str(base.folder), str(folder), str(tmp_path / "merged")]) == 0
    assert read_description(tmp_path / "merged").fingerprint != base.fingerprint
    merged = load_model(tmp_path / "merged", FULL, seed=0)
    with torch.no_grad():
        torch.testing.assert_close(row_values(merged, 10_000), row_values(adapted, 10_000), rtol=1e-5, atol=1e-3)
    assert export.main([str(base.folder), str(tmp_path), str(tmp_path / "again")]) == 1
    assert "adapter_config.json" in capsys.readouterr().err


def test_a_checkpoint_holds_a_model_folder_and_resumes_exactly(base: BaseModel, tmp_path: Path):
    spec = make_spec(trainer={"update": "full"}, optimiser={"learning_rate": 1e-3, "warmup_steps": 0})
    straight = PolicyTrainer(spec, base)
    straight.step("b0", make_groups(0))
    straight.save(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["files"].keys() >= {"model/model.safetensors"}
    resumed = PolicyTrainer(spec, base)
    resumed.load(tmp_path)
    for trainer in (straight, resumed):
        trainer.step("b1", make_groups(1))
    for name, value in straight.policy.parameters.items():
        assert torch.equal(value, resumed.policy.parameters[name]), name


def test_a_run_may_start_from_whole_weights_and_from_nothing_else_than_these_bytes(base: BaseModel, tmp_path: Path):
    spec = make_spec(trainer={"update": "full"}, optimiser={"learning_rate": 1e-3, "warmup_steps": 0})
    parent = PolicyTrainer(spec, base)
    parent.step("b0", make_groups(0))
    digest = write_model(parent.policy.model, tmp_path / "model", base_folder=base.folder, world=ALONE)
    child = PolicyTrainer(spec, base)
    child.start_from(tmp_path / "model", digest)
    for name, value in parent.policy.parameters.items():
        assert torch.equal(value, child.policy.parameters[name]), name
    with pytest.raises(ModelLoadError, match="is damaged"):
        child.start_from(tmp_path / "model", "0" * 64)
    with pytest.raises(ModelLoadError, match=r"set trainer\.update to full"):
        PolicyTrainer(make_spec(), base).start_from(tmp_path / "model", digest)


def test_the_last_version_is_stored_whole_whatever_lies_before_it(base: BaseModel, tmp_path: Path):
    store = ObjectStore(f"file://{tmp_path / 'objects'}")
    spec = make_spec(trainer={"update": "full"}, optimiser={"learning_rate": 1e-6, "warmup_steps": 0})
    trainer = PolicyTrainer(spec, base, run_id="x", attempt=1)
    publisher = CheckpointPublisher(store, "x", 1, snapshot_every=100)
    whole = []
    for index in range(4):
        trainer.step(f"b{index}", make_groups(index))
        published = publisher.publish(trainer, last=index == 3)
        whole.append(store.exists(f"{published.adapter}/model.safetensors"))
    assert whole[0] and whole[3]
    assert file_sha256(Path(store.path(f"{published.adapter}/model.safetensors"))) == published.sha256


@pytest.fixture
def adapter(base: BaseModel, tmp_path: Path) -> tuple[PackedLlama, Path]:
    adapted = load_model(base.folder, TrainedParts(LORA, torch.float32), seed=3)
    with torch.no_grad():
        for name, parameter in adapter_parameters(adapted).items():
            if "lora_B" in name:
                parameter.normal_(0, 0.05, generator=torch.Generator().manual_seed(1))
    save_adapter(adapter_parameters(adapted), tmp_path / "adapter", lora=LORA, base_name="tiny")
    return adapted, tmp_path / "adapter"


def test_it_may_start_from_an_adapter(base: BaseModel, adapter: tuple[PackedLlama, Path]):
    adapted, folder = adapter
    model = load_model(base.folder, FULL, seed=0)
    with torch.no_grad():
        before = row_values(model, 10_000)
        load_adapter(model, folder)
        torch.testing.assert_close(row_values(model, 10_000), row_values(adapted, 10_000), rtol=1e-5, atol=1e-3)
    assert abs(float(before - row_values(model, 10_000).detach())) > 0.1


def test_an_adapter_of_another_model_is_refused_and_changes_nothing(
    base: BaseModel, adapter: tuple[PackedLlama, Path], tmp_path: Path
):
    tensors = {"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": torch.ones(4, 128)}
    save_adapter(tensors, tmp_path / "foreign", lora=LORA, base_name="other")
    model = load_model(base.folder, FULL, seed=0)
    with pytest.raises(ModelLoadError, match="does not fit"):
        load_adapter(model, tmp_path / "foreign")
    fresh = load_model(base.folder, FULL, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
