"""GSPO's sequence ratio and the dual clip, by hand."""

import math

import pytest
import torch

from gpu_workers.algorithms.clipping import clipped_objective
from gpu_workers.algorithms.ratios import importance_ratios
from gpu_workers.contracts.runspec import Algorithm

OLD = torch.tensor([-1.0, -2.0, -3.0])
EPISODE = torch.tensor([7, 7, 2])


def test_a_sequence_shares_the_geometric_mean_of_its_ratios():
    current = (OLD + torch.tensor([0.3, -0.1, 0.5])).requires_grad_()
    ratio = importance_ratios(Algorithm.GSPO, current, OLD, EPISODE)
    torch.testing.assert_close(ratio.detach(), torch.tensor([math.exp(0.1), math.exp(0.1), math.exp(0.5)]))
    ratio.sum().backward()  # sg(s)·exp(π − sg(π)): each token's slope is its own s
    torch.testing.assert_close(current.grad, ratio.detach())


@pytest.mark.parametrize("kind", [Algorithm.GRPO, Algorithm.PPO])
def test_tokens_have_ratios_of_their_own(kind: Algorithm):
    ratio = importance_ratios(kind, OLD + torch.tensor([0.3, -0.1, 40.0]), OLD, EPISODE)
    torch.testing.assert_close(ratio, torch.tensor([math.exp(0.3), math.exp(-0.1), math.exp(20.0)]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "slope", "dual"),
    [
        (5.0, -1.0, -3.0, 0.0, 1),  # below c·A: held there
        (2.0, -1.0, -2.0, -1.0, 0),
        (5.0, 1.0, 1.2, 0.0, 0),  # a good token knows only the upper clip
        (0.5, -1.0, -0.8, 0.0, 0),
    ],
)
def test_the_dual_clip_bounds_what_a_bad_token_can_cost(ratio, advantage, objective, slope, dual):
    r = torch.tensor([ratio], requires_grad=True)
    found, sums = clipped_objective(r, torch.tensor([advantage]), low=0.2, high=0.2, dual=3.0)
    found.sum().backward()
    assert float(found.detach()) == pytest.approx(objective)
    assert float(r.grad) == pytest.approx(slope)
    assert sums.num_dual == dual
