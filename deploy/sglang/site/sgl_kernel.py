"""Stands in for sgl_kernel on a CPU, for which no wheel is published: what a dense model imports, in plain torch.

SGLang asks torch.ops for its packed AMX kernels and falls back to torch where they are missing, as they are here.
Everything else can be imported and fails by name when called.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

__version__ = "0.0.0+cpu"

# SGLang looks this operator up while it is imported; only seeded sampling, which a CPU does not do, would call it.
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col) -> Tensor")


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int | None = None,
) -> None:
    """Writes the cache slots of each request's new tokens into its row; slots lie end to end in `out_cache_loc`."""
    taken = 0
    rows = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=False)
    for row, start, end in rows:
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU version here")

    return missing


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def call(*arguments: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        return make(*arguments, **options)

    return call


# A torch without an accelerator refuses pinned memory, which SGLang's LoRA code asks for.
if not torch.cuda.is_available():
    for _name in ("tensor", "zeros", "empty", "arange", "ones", "full"):
        setattr(torch, _name, _unpinned(getattr(torch, _name)))
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign,assignment,misc]
