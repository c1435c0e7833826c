"""Log-probs of trainer, embedded engine and SGLang on the same tokens; -s prints what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest
import torch

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.runspec import RunSpec, parse_run_spec
from gpu_workers.contracts.seams import GenerateRequest
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models.folder import read_description
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.packing import TokenSequence, pack
from tests.sglang import server
from tests.unit.gpu_workers.engines.serving import serving

PROMPTS = [(1, 4093, 198), (504, 1230, 282), server.ENDLESS_PROMPT, tuple(range(100, 164))]
NEW_TOKENS = 24
ADAPTER = "run-1.a1@v1"
# All three compute in float32 and differ in the order of their sums.
TOLERANCE = 2e-4


class Sampled(NamedTuple):
    prompt: tuple[int, ...]
    ids: list[int]
    logprobs: list[float]


@pytest.fixture(scope="module")
def trainer(smollm2: Path) -> PolicyTrainer:
    """With an adapter that has been moved away from doing nothing."""
    base = BaseModel(smollm2.name, smollm2, read_description(smollm2).fingerprint)
    made = PolicyTrainer(_spec(), base, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in made.policy.parameters.values():  # type: ignore[attr-defined]
            value.add_(torch.randn(value.shape, generator=generator) * 0.02)
    return made


@pytest.fixture(scope="module")
def adapter(trainer: PolicyTrainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    trainer.policy.export(folder, trainer.base.name)
    return folder / "adapter"


def _spec() -> RunSpec:
    return parse_run_spec({"suite": "s", "policy": "p", "lora": {"rank": 8, "alpha": 16.0}})


async def hold(url: str, adapter: Path | None) -> None:
    """Exactly this adapter, or none."""
    engine = SGLangEngine(url)
    try:
        if ADAPTER in (await engine.info()).adapters:
            await engine.unload_adapter(ADAPTER)
        if adapter is not None:
            await engine.load_adapter(ADAPTER, str(adapter))
    finally:
        await engine.close()


async def sample(url: str, adapter: str, temperature: float) -> list[Sampled]:
    engine = SGLangEngine(url)
    found = []
    for prompt in PROMPTS:
        sampling = Sampling(max_new_tokens=NEW_TOKENS, temperature=temperature, seed=7)
        result = await engine.generate(GenerateRequest(prompt, sampling, adapter=adapter))
        found.append(Sampled(prompt, result.output_ids, result.logprobs))
    await engine.close()
    return found


def of_trainer(trainer: PolicyTrainer, samples: Sequence[Sampled], temperature: float) -> list[np.ndarray]:
    """log π of each sample's own tokens, by the forward pass that training uses."""
    sequences = [
        TokenSequence(
            np.array([*s.prompt, *s.ids], np.int32), np.array([0] * len(s.prompt) + [1] * len(s.ids), np.uint8)
        )
        for s in samples
    ]
    rows = pack(sequences, max_row_tokens=1024)
    found = [np.zeros(len(s.ids)) for s in samples]
    for row, output in zip(rows, trainer.policy.evaluate(rows, temperature), strict=True):
        values = output.logprob_U.double().numpy()[row.edge_T]
        for sequence, offset, value in zip(row.sequence_T, row.offset_T, values, strict=True):
            found[sequence][offset] = value
    return found


async def scored(url: str, adapter: str, samples: Sequence[Sampled]) -> list[np.ndarray]:
    """log π of the same tokens by an engine that is given them as input, at temperature 1."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for s in samples:
            body = {
                "input_ids": [*s.prompt, *s.ids],
                "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
                "return_logprob": True,
                "logprob_start_len": 0,
                "lora_path": adapter or None,
            }
            meta = (await http.post("/generate", json=body)).raise_for_status().json()["meta_info"]
            found.append(np.array([row[0] for row in meta["input_token_logprobs"][len(s.prompt) :]], float))
    return found


def difference(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> np.ndarray:
    return np.abs(np.concatenate(list(left)) - np.concatenate(list(right)))


@pytest.mark.parametrize("adapted", [False, True])
async def test_the_three_agree(
    sglang_url: str, smollm2: Path, trainer: PolicyTrainer, adapter: Path, adapted: bool
) -> None:
    """On tokens that each engine sampled (at 1.0 and 0.7), and on the same tokens given to both as input."""
    base = PolicyTrainer(_spec(), trainer.base, dtype=torch.float32)
    policy = trainer if adapted else base
    name = ADAPTER if adapted else ""
    with serving(smollm2, "--dtype", "float32") as (embedded_url, _):
        for url in (sglang_url, embedded_url):
            await hold(url, adapter if adapted else None)
        for temperature in (1.0, 0.7):
            for engine_name, url in (("SGLang", sglang_url), ("embedded", embedded_url)):
                samples = await sample(url, name, temperature)
                off = difference([np.array(s.logprobs) for s in samples], of_trainer(policy, samples, temperature))
                report(f"{engine_name} samples, trainer scores, T={temperature}, adapter {adapted}", off)
                assert off.max() < TOLERANCE
        samples = await sample(sglang_url, name, 1.0)
        theirs, ours = await scored(sglang_url, name, samples), await scored(embedded_url, name, samples)
        off = difference(theirs, ours)
        report(f"SGLang and embedded engine score the same input, adapter {adapted}", off)
        assert off.max() < TOLERANCE
        off = difference(ours, of_trainer(policy, samples, 1.0))
        report(f"embedded engine and trainer score the same input, adapter {adapted}", off)
        assert off.max() < TOLERANCE
        await hold(sglang_url, None)


def test_the_tolerance_is_tight_enough_to_see_an_adapter(trainer: PolicyTrainer) -> None:
    """An engine that ignored the adapter would be noticed."""
    base = PolicyTrainer(_spec(), trainer.base, dtype=torch.float32)
    samples = [Sampled(prompt, [30, 40, 50], []) for prompt in PROMPTS]
    off = difference(of_trainer(trainer, samples, 1.0), of_trainer(base, samples, 1.0))
    assert off.max() > 20 * TOLERANCE


def report(what: str, off: np.ndarray) -> None:
    print(f"{what}: mean {off.mean():.1e}, largest {off.max():.1e} of {len(off)} tokens")
