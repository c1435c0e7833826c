"""Builds the Batch of one step from the running requests and the admitted prefills."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_workers.engines.embedded.admission import Prefill
from gpu_workers.engines.embedded.batch import Batch, PrefillSpan, build_levels
from gpu_workers.engines.embedded.lora import Adapter, AdapterRows
from gpu_workers.engines.embedded.request import Request


@dataclass(frozen=True)
class StepPlan:
    """Hidden states come back in this order: decode rows, ends of finished prefills, rows for input log-probs."""

    batch: Batch
    finished: list[Prefill]
    scored: list[tuple[Request, list[int]]]  # request, ids of the tokens whose log-probs its rows give


def plan_step(running: Sequence[Request], prefills: Sequence[Prefill]) -> StepPlan:
    """Rows: one per running request in slot order, then the prefills' tokens."""
    tokens = [request.output_ids[-1] for request in running]
    positions = [request.num_tokens - 1 for request in running]
    owners: list[tuple[Sequence[int], Request]] = [([row], request) for row, request in enumerate(running)]
    wanted = list(range(len(running)))
    spans, scored_rows = [], []
    finished: list[Prefill] = []
    scored: list[tuple[Request, list[int]]] = []
    for prefill in prefills:
        first = len(tokens)
        tokens += prefill.tokens[prefill.start : prefill.stop].tolist()
        positions += range(prefill.start, prefill.stop)
        spans.append(PrefillSpan(first, len(tokens), prefill.kv))
        owners.append((range(first, len(tokens)), prefill.requests[0]))
        if prefill.is_last:
            finished.append(prefill)
            wanted.append(len(tokens) - 1)
        rows, ids = _scored(prefill, first)
        if ids:
            scored.append((prefill.requests[0], ids))
            scored_rows += rows
    paths = [request.leaf.path() if request.leaf else [] for _, request in owners]
    branch_positions = [request.branch_length for request in running]
    batch = Batch(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        num_decode=len(running),
        branch_positions=torch.tensor(branch_positions, dtype=torch.int64),
        branch_length=max(branch_positions, default=-1) + 1,
        prefills=spans,
        levels=build_levels([(rows, path) for (rows, _), path in zip(owners, paths, strict=True)], len(tokens)),
        paths=paths,
        adapters=_adapter_rows(owners, len(tokens)),
        wanted_rows=torch.tensor(wanted + scored_rows, dtype=torch.int64),
    )
    return StepPlan(batch, finished, scored)


def _scored(prefill: Prefill, first_row: int) -> tuple[list[int], list[int]]:
    """Rows and next ids for the input log-probs a request asked for."""
    request = prefill.requests[0]
    if request.next_scored is None:
        return [], []
    start = max(prefill.start, request.next_scored)
    stop = min(prefill.stop, len(request.input_ids) - 1)
    rows = [first_row + position - prefill.start for position in range(start, stop)]
    return rows, [int(token) for token in prefill.tokens[start + 1 : stop + 1]] if rows else []


def _adapter_rows(owners: Sequence[tuple[Sequence[int], Request]], num_rows: int) -> list[AdapterRows]:
    rows: dict[int, tuple[Adapter, list[int]]] = {}
    for indices, request in owners:
        if request.adapter is not None:
            rows.setdefault(request.adapter.uid, (request.adapter, []))[1].extend(indices)
    return [
        AdapterRows(adapter, None if len(indices) == num_rows else torch.tensor(indices))
        for adapter, indices in rows.values()
    ]
