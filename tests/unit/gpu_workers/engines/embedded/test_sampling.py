"""Sampling against hand-computed distributions."""

import math

import pytest
import torch

from gpu_workers.engines.embedded.sampling import RowSampling, sample, token_logprobs

PROBABILITIES = (0.5, 0.3, 0.15, 0.05)
LOGITS = torch.tensor([[math.log(p) + 3.0 for p in PROBABILITIES]])


def draw(uniform: float, logits: torch.Tensor = LOGITS, **options: float) -> tuple[int, float]:
    sampled = sample(logits, [RowSampling(uniform=uniform, **options)])
    return sampled.ids[0], sampled.logprobs[0]


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.96, 3), (0.999999, 3)]
)
def test_uniform_falls_into_the_cumulative_distribution(uniform: float, token: int) -> None:
    assert draw(uniform) == (token, pytest.approx(math.log(PROBABILITIES[token]), abs=1e-6))


def test_temperature_sharpens_and_is_in_the_logprob() -> None:
    squares = [p**2 for p in PROBABILITIES]
    token, logprob = draw(0.6, temperature=0.5)
    assert token == 0  # 0.25 / 0.365 = 0.685 of the mass
    assert logprob == pytest.approx(math.log(squares[0] / sum(squares)), abs=1e-6)


def test_greedy_reports_temperature_one() -> None:
    assert draw(0.99, temperature=0.0) == (0, pytest.approx(math.log(0.5), abs=1e-6))


def test_top_p_keeps_the_token_that_crosses_and_scores_before_truncation() -> None:
    assert {draw(u, top_p=0.6)[0] for u in (0.0, 0.5, 0.99)} == {0, 1}
    assert draw(0.99, top_p=0.6)[1] == pytest.approx(math.log(0.3), abs=1e-6)
    assert {draw(u, top_p=0.5)[0] for u in (0.0, 0.5, 0.999)} == {0}


def test_top_k_and_min_p_truncate() -> None:
    assert {draw(u, top_k=2)[0] for u in (0.0, 0.5, 0.7, 0.999)} == {0, 1}
    assert draw(0.61, top_k=2)[0] == 0  # 0.5 / 0.8 = 0.625
    assert {draw(u, min_p=0.25)[0] for u in (0.0, 0.7, 0.9, 0.999)} == {0, 1, 2}


@pytest.mark.parametrize("vocab", [3, 256, 257, 1000, 49152])
def test_blocks_agree_with_a_plain_cumulative_sum(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(40, vocab, generator=generator) * 3
    uniforms = torch.rand(40, generator=generator, dtype=torch.float64)
    sampled = sample(logits, [RowSampling(uniform=u) for u in uniforms.tolist()])
    cumulative = logits.double().softmax(-1).cumsum(-1)
    for row, token in enumerate(sampled.ids):
        upper, lower = cumulative[row, token], cumulative[row, token - 1] if token else 0.0
        assert lower - 1e-5 <= uniforms[row] <= upper + 1e-5
    expected = logits.log_softmax(-1).gather(1, torch.tensor(sampled.ids).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(sampled.logprobs).float(), expected, atol=1e-5, rtol=0)


def test_frequencies_follow_the_probabilities() -> None:
    rows = 4000
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(1)).tolist()
    sampled = sample(LOGITS.expand(rows, -1), [RowSampling(uniform=u) for u in uniforms])
    for token, probability in enumerate(PROBABILITIES):
        error = 4 * math.sqrt(probability * (1 - probability) / rows)
        assert sampled.ids.count(token) / rows == pytest.approx(probability, abs=error)


def test_never_a_token_of_no_weight() -> None:
    logits = torch.full((1, 600), -1e4)
    logits[0, 300] = 0.0
    assert {draw(u, logits)[0] for u in (0.0, 0.5, 1 - 1e-16, 0.999999999)} == {300}


def test_logprobs_of_given_tokens() -> None:
    assert token_logprobs(LOGITS.expand(2, -1), torch.tensor([1, 3])) == pytest.approx(
        [math.log(0.3), math.log(0.05)], abs=1e-6
    )


@pytest.mark.parametrize("cut", [{"top_p": 1e-46}, {"top_p": 1e-320}, {"min_p": 1.0}, {"top_k": 1, "top_p": 1e-300}])
def test_one_token_is_always_left(cut: dict[str, float]) -> None:
    assert draw(0.99, **cut)[0] == 0


def test_logits_that_are_no_numbers_give_a_token_whose_logprob_says_so() -> None:
    token, logprob = draw(0.5, torch.full((1, 4), float("nan")), top_p=0.5)
    assert 0 <= token < 4 and math.isnan(logprob)
