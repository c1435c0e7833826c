"""Each fused function against its plain formula, in value and gradient."""

import torch
import torch.nn.functional as F

from gpu_workers.trainer.kernels import LoraLinear, RmsNorm, SwiGlu


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return (
        torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).float().requires_grad_()
    )


def compare(fused: torch.Tensor, plain: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)
    slope = torch.randn(plain.shape, generator=torch.Generator().manual_seed(99))
    mine = torch.autograd.grad(fused, leaves, slope)
    theirs = torch.autograd.grad(plain, leaves, slope)
    for left, right in zip(mine, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_rms_norm():
    x, weight = leaf(5, 8), leaf(8, seed=1)
    compare(RmsNorm.apply(x, weight, 1e-5), F.rms_norm(x, (8,), weight, 1e-5), [x, weight])
    frozen = weight.detach()
    compare(RmsNorm.apply(x, frozen, 1e-5), F.rms_norm(x, (8,), frozen, 1e-5), [x])


def test_swiglu():
    x = leaf(5, 12)
    compare(SwiGlu.apply(x), F.silu(x[:, :6]) * x[:, 6:], [x])


def test_lora_linear_with_several_outputs():
    x, weight = leaf(7, 6), leaf(9, 6, seed=1).detach()
    a, b = [leaf(2, 6, seed=2), leaf(3, 6, seed=3)], [leaf(4, 2, seed=4), leaf(5, 3, seed=5)]
    delta = torch.cat([x @ a[0].T @ b[0].T, x @ a[1].T @ b[1].T], dim=1)
    compare(LoraLinear.apply(x, weight, 1.5, *a, *b), x @ weight.T + 1.5 * delta, [x, *a, *b])
