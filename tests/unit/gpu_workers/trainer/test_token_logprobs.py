"""Log-probs and entropies over chunks of the vocabulary against log_softmax, in value and gradient."""

import pytest
import torch
from torch import Tensor

from gpu_workers.trainer import token_logprobs as module
from gpu_workers.trainer.token_logprobs import token_logprobs
from tests.unit.gpu_workers.trainer.test_kernels import compare, leaf


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_WORDS", 4)  # three chunks of a vocabulary of 11, the last one short


def plain(hidden: Tensor, head: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_p = (hidden @ head.T / temperature).log_softmax(-1)
    return log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("rows", [0, 1, 130])
def test_with_a_frozen_head(temperature: float, rows: int):
    hidden, head = leaf(rows, 6), leaf(11, 6, seed=1).detach()
    target = torch.arange(rows) % 11
    logprob, entropy = token_logprobs(hidden, head, target, temperature)
    wanted, wanted_entropy = plain(hidden, head, target, temperature)
    compare(logprob, wanted, [hidden])
    torch.testing.assert_close(entropy, wanted_entropy.detach(), atol=1e-5, rtol=1e-4)
    assert not entropy.requires_grad


@pytest.mark.parametrize("trains_head", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("rows", [0, 1, 130])
def test_gradients_of_entropy_and_head(temperature: float, rows: int, trains_head: bool):
    hidden, head = leaf(rows, 6), leaf(11, 6, seed=1)
    leaves = [hidden, head] if trains_head else [hidden]
    head = head if trains_head else head.detach()
    target = torch.arange(rows) % 11
    logprob, entropy = token_logprobs(hidden, head, target, temperature, entropy_gradient=True)
    wanted, wanted_entropy = plain(hidden, head, target, temperature)
    compare(torch.stack([logprob, entropy]), torch.stack([wanted, wanted_entropy]), leaves)


def test_a_trained_head_needs_no_entropy_gradient():
    hidden, head, target = leaf(5, 6), leaf(11, 6, seed=1), torch.arange(5)
    compare(token_logprobs(hidden, head, target, 0.9)[0], plain(hidden, head, target, 0.9)[0], [hidden, head])


def test_extreme_logits_stay_finite():
    hidden, head = leaf(3, 6), leaf(11, 6, seed=1)
    logprob, entropy = token_logprobs(hidden * 1e3, head, torch.arange(3), 1.0, entropy_gradient=True)
    (logprob.sum() + entropy.sum()).backward()
    assert all(bool(torch.isfinite(value).all()) for value in (logprob, entropy, hidden.grad, head.grad))
