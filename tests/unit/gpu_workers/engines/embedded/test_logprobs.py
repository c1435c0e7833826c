"""Log-probs against an independent implementation: transformers and PEFT in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from gpu_workers.engines.embedded.branches import BRANCH_TOKENS
from gpu_workers.engines.embedded.request import Request
from tests.unit.gpu_workers.engines.asking import ask, ask_all, prompt, submit
from tests.unit.gpu_workers.engines.conftest import Start
from tests.unit.gpu_workers.engines.serving import make_adapter

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(tiny_model).eval()


@torch.no_grad()
def expected(model: torch.nn.Module, request: Request, temperature: float = 1.0) -> np.ndarray:
    """Log-probs of the answer, all tokens in one pass."""
    ids = [*request.input_ids.tolist(), *request.output_ids]
    logits = model(torch.tensor([ids])).logits[0].float() / temperature
    chosen = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    return chosen[len(request.input_ids) - 1 :].numpy()


@pytest.mark.parametrize("length", [1, 2, 17, 130])
def test_one_request(start: Start, reference: LlamaForCausalLM, length: int) -> None:
    request = ask(start(), prompt(length), max_new_tokens=2 * BRANCH_TOKENS + 7)  # two spills to the tree
    assert len(request.output_ids) == 2 * BRANCH_TOKENS + 7
    np.testing.assert_allclose(request.output_logprobs, expected(reference, request), atol=TOLERANCE)


def test_temperature_scales_before_truncation(start: Start, reference: LlamaForCausalLM) -> None:
    engine = start()
    for options in ({"temperature": 0.5}, {"temperature": 2.0, "top_p": 0.5, "top_k": 7}):
        request = ask(engine, prompt(9), max_new_tokens=20, **options)
        np.testing.assert_allclose(
            request.output_logprobs, expected(reference, request, options["temperature"]), atol=TOLERANCE
        )


def test_greedy_takes_the_most_likely_at_temperature_one(start: Start, reference: LlamaForCausalLM) -> None:
    request = ask(start(), prompt(30), max_new_tokens=12, temperature=0.0)
    np.testing.assert_allclose(request.output_logprobs, expected(reference, request), atol=TOLERANCE)
    ids = torch.tensor([[*request.input_ids.tolist(), *request.output_ids]])
    with torch.no_grad():
        best = reference(ids).logits[0, 29:-1].argmax(-1)
    assert best.tolist() == request.output_ids


def test_a_group_and_strangers_in_one_batch(start: Start, reference: LlamaForCausalLM) -> None:
    shared = prompt(60)
    prompts = [shared] * 5 + [[*shared[:40], *prompt(9, seed=1)], prompt(25, seed=2), shared[:40], [7]]
    for request in ask_all(start(), prompts, max_new_tokens=70):
        np.testing.assert_allclose(request.output_logprobs, expected(reference, request), atol=TOLERANCE)


def test_long_prompts_computed_in_pieces_beside_running_requests(start: Start, reference: LlamaForCausalLM) -> None:
    engine = start("--prefill-tokens-per-step", "16")
    for request in ask_all(engine, [prompt(100, seed=s) for s in range(4)], max_new_tokens=20):
        np.testing.assert_allclose(request.output_logprobs, expected(reference, request), atol=TOLERANCE)


def test_a_conversation_continues_from_the_cache(start: Start, reference: LlamaForCausalLM) -> None:
    engine = start()
    first = ask_all(engine, [prompt(50)] * 3, max_new_tokens=80)
    turns = [[*r.input_ids.tolist(), *r.output_ids, *prompt(6, seed=9)] for r in first]
    for before, request in zip(first, ask_all(engine, turns, max_new_tokens=30), strict=True):
        assert request.num_cached_tokens == before.num_tokens - 1  # the last token was sampled, never computed
        np.testing.assert_allclose(request.output_logprobs, expected(reference, request), atol=TOLERANCE)


def test_input_logprobs_ignore_temperature(start: Start, reference: LlamaForCausalLM) -> None:
    engine, ids = start("--prefill-tokens-per-step", "16"), prompt(50)
    ask(engine, ids)  # a cached prefix may not hide positions that are asked for
    with torch.no_grad():
        logprobs = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    whole = logprobs[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1).numpy()
    for begin in (0, 20, 49):
        request = ask(engine, ids, max_new_tokens=1, temperature=0.5, logprob_start=begin)
        np.testing.assert_allclose(request.input_logprobs, whole[begin:], atol=TOLERANCE)
    assert ask(engine, ids, max_new_tokens=0, logprob_start=0).output_ids == []


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # raised between PEFT and transformers
def test_adapters_side_by_side(start: Start, reference: LlamaForCausalLM, tmp_path: Path, tiny_model: Path) -> None:
    from peft import PeftModel

    engine = start()
    folders = [make_adapter(tmp_path / str(seed), seed=seed, rank=rank) for seed, rank in ((1, 4), (2, 8))]
    adapters = [engine.read_adapter(str(i), str(folder)) for i, folder in enumerate(folders)]
    models = [
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(folder)).eval()
        for folder in folders
    ]
    ids = prompt(20)
    gate = engine.call(
        lambda: [submit(engine, ids, adapter=a, max_new_tokens=70) for _ in range(3) for a in (None, *adapters)]
    )
    for request in [future.result(60) for future in gate.result(60)]:
        model = reference if request.adapter is None else models[int(request.adapter.name)]
        np.testing.assert_allclose(request.output_logprobs, expected(model, request), atol=TOLERANCE)
    base, first = ask(engine, ids, temperature=0.0), ask(engine, ids, temperature=0.0, adapter=adapters[0])
    assert base.output_logprobs != first.output_logprobs
