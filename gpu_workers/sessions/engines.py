"""How a session's turns meet the engines."""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Sequence

from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, RolloutEngine, WorkerError


def order_engines(session_id: str, engines: Sequence[RolloutEngine]) -> list[RolloutEngine]:
    """By preference: the turns of a session meet on one engine, sessions spread evenly (rendezvous hashing)."""
    digests = [hashlib.sha256(f"{session_id} {index}".encode()).digest() for index in range(len(engines))]
    return [engines[index] for index in sorted(range(len(engines)), key=digests.__getitem__)]


def is_unreachable(error: WorkerError) -> bool:
    """Whether the engine did not answer at all."""
    return error.retryable and getattr(error, "status", 0) == 0


async def results_of(
    engine: RolloutEngine, request: GenerateRequest, *, stream: bool
) -> AsyncGenerator[GenerateResult, None]:
    """Cumulative results, or the last one alone."""
    if not stream:
        yield await engine.generate(request)
        return
    async for result in engine.stream(request):
        yield result


async def abort_quietly(engine: RolloutEngine, request_id: str) -> None:
    with contextlib.suppress(WorkerError):  # then the turn ends by itself
        await engine.abort(request_id)
