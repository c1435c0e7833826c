"""One forward pass as data: which rows there are, what each attends to, where results go. Rows: decode rows first."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_workers.engines.embedded.lora import AdapterRows
from gpu_workers.engines.embedded.prefix_tree import Run


@dataclass(frozen=True)
class Level:
    """Rows whose path has a run at this depth, ordered so that each run serves a contiguous range.

    rows [n] are batch rows; None when the order is the batch's own and complete.
    """

    rows: torch.Tensor | None
    spans: list[tuple[Run, int, int]]  # run, start, stop in this order


@dataclass(frozen=True)
class PrefillSpan:
    """Rows [start, stop) are consecutive new tokens of one request; keys and values go to kv [L, 2, KVH, n, D]."""

    start: int
    stop: int
    kv: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """tokens and positions are [N]; the first num_decode rows own branch slots 0..num_decode-1."""

    tokens: torch.Tensor
    positions: torch.Tensor
    num_decode: int
    branch_positions: torch.Tensor  # [num_decode], where each decode row writes in its branch
    branch_length: int  # longest branch after this step
    prefills: list[PrefillSpan]
    levels: list[Level]
    paths: list[list[Run]]  # what lies cached before each decode row, then before each prefill
    adapters: list[AdapterRows]
    wanted_rows: torch.Tensor  # rows whose final hidden state is returned


def build_levels(spans: Sequence[tuple[Sequence[int], list[Run]]], num_rows: int) -> list[Level]:
    """Levels of a batch from (rows, path of runs) pairs; rows under the same run are put together."""
    levels = []
    for depth in range(max((len(path) for _, path in spans), default=0)):
        by_run: dict[int, tuple[Run, list[int]]] = {}
        for rows, path in spans:
            if depth < len(path):
                by_run.setdefault(id(path[depth]), (path[depth], []))[1].extend(rows)
        order: list[int] = []
        runs = []
        for run, rows in by_run.values():
            runs.append((run, len(order), len(order) + len(rows)))
            order.extend(rows)
        levels.append(Level(None if order == list(range(num_rows)) else torch.tensor(order), runs))
    return levels
