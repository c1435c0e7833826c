"""Puts requests to an engine of this process and waits for them."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.lora import Adapter
from gpu_workers.engines.embedded.request import Request, SamplingParams

WAIT_SECONDS = 60


def submit(
    engine: Engine,
    ids: Sequence[int],
    *,
    adapter: Adapter | None = None,
    logprob_start: int = -1,
    rid: str = "r",
    **params: Any,
) -> Future[Request]:
    done: Future[Request] = Future()

    def changed(request: Request) -> None:
        if request.finish_reason is not None:
            done.set_result(request)

    sampling = SamplingParams(**{"max_new_tokens": 8, **params})
    engine.submit(
        Request(
            np.asarray(ids, np.int32), sampling, rid=rid, adapter=adapter, changed=changed,
            return_logprob=True, logprob_start=logprob_start,
        )
    )  # fmt: skip
    return done


def ask(engine: Engine, ids: Sequence[int], **options: Any) -> Request:
    return submit(engine, ids, **options).result(WAIT_SECONDS)


def ask_all(engine: Engine, prompts: Sequence[Sequence[int]], **options: Any) -> list[Request]:
    """All submitted before the engine looks: they are admitted together."""
    gate: Future[list[Future[Request]]] = engine.call(lambda: [submit(engine, ids, **options) for ids in prompts])
    return [future.result(WAIT_SECONDS) for future in gate.result(WAIT_SECONDS)]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Pseudo-random ids of the tiny vocabulary, no special tokens."""
    return np.random.default_rng(seed).integers(4, 100, size=length).tolist()
