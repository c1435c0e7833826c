"""Several engines that serve the same, as one: control reaches each, generation one that has confirmed the version."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, RolloutEngine, WorkerError
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.versions import is_served

RECHECK_SECONDS = 1.0  # between two questions to an engine that does not hold what is wanted
_RATIOS = ("_usage", "_rate", "_share")  # metrics whose mean over engines is meant, not their sum

T = TypeVar("T")


@dataclass(eq=False)
class _Member:
    """One engine. `confirmed` is what it said it holds, forgotten when it fails: nothing is sent before it says so."""

    url: str
    engine: RolloutEngine
    confirmed: EngineInfo | None = None
    asked_at: float = float("-inf")
    problem: str = ""
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)  # one question answers everyone who waits for it


class EngineFleet:
    """RolloutEngine over engines in order of preference, with sglang-router in front where there is one.

    An engine that does not answer is left out, and comes back when it has confirmed the version a request names. A
    request whose engine fails is answered by the next one: what the first had sampled was never handed on. The router
    knows nothing of versions and has no control calls, so those go to each engine, and what it answers is checked.
    """

    def __init__(
        self, engines: Sequence[tuple[str, RolloutEngine]], *, router: RolloutEngine | None = None, weights: str = ""
    ) -> None:
        """`weights`: the version of the base weights that answers requests which name none."""
        self._members = [_Member(url, engine) for url, engine in engines]
        self._router, self._weights = router, weights

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Raises EngineError that says what is wrong with every engine when none can serve."""
        request, tried = self._versioned(request), list[_Member]()
        while True:
            tried.append(await self._member_for(request.adapter, request.weights, tried))
            try:
                return await (self._router or tried[-1].engine).generate(request)
            except WorkerError as error:
                if not self._goes_on(tried, error):
                    raise

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        """Goes on with another engine only while nothing was handed on."""
        request, begun, tried = self._versioned(request), False, list[_Member]()
        while True:
            tried.append(await self._member_for(request.adapter, request.weights, tried))
            try:
                async for result in (self._router or tried[-1].engine).stream(request):
                    begun = True
                    yield result
                return
            except WorkerError as error:
                if not self._goes_on(tried, error) or begun:
                    raise

    async def confirm(self, *, adapter: str = "", weights: str = "") -> EngineInfo:
        """What an engine says that holds this. Raises EngineError when none does."""
        member = await self._member_for(adapter, weights or self._weights, ())
        assert member.confirmed is not None
        return member.confirmed

    async def abort(self, request_id: str) -> None:
        """Behind a router nobody knows whose the request is."""
        await self._each(lambda engine: engine.abort(request_id), forgiving=True)

    async def pause(self, mode: str = "abort") -> None:
        await self._each(lambda engine: engine.pause(mode))

    async def resume(self) -> None:
        await self._each(lambda engine: engine.resume())

    async def flush_cache(self) -> None:
        await self._each(lambda engine: engine.flush_cache())

    async def load_adapter(self, name: str, path: str) -> None:
        await self._each(lambda engine: engine.load_adapter(name, path))

    async def unload_adapter(self, name: str) -> None:
        await self._each(lambda engine: engine.unload_adapter(name))

    async def stage_weights(self, path: str) -> bool:
        return all(await self._each(lambda engine: engine.stage_weights(path)))

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        await self._each(lambda engine: engine.update_weights(path, version, flush_cache=flush_cache))

    async def set_version(self, version: str) -> None:
        await self._each(lambda engine: engine.set_version(version))

    async def info(self) -> EngineInfo:
        """What all of them hold. Raises EngineError when one does not answer or they serve different weights."""
        infos = await self._each(lambda engine: engine.info())
        versions = {(info.model_path, info.weight_version) for info in infos}
        if len(versions) != 1:
            said = ", ".join(f"{m.url}: {i.weight_version}" for m, i in zip(self._members, infos, strict=True))
            raise EngineError(f"the engines serve different weights ({said})")
        shared = [name for name in infos[0].adapters if all(name in info.adapters for info in infos)]
        return EngineInfo(infos[0].model_path, infos[0].weight_version, tuple(shared), infos[0].raw)

    async def weights_digest(self) -> str:
        """Raises EngineError when the engines' weights differ."""
        digests = await self._each(lambda engine: engine.weights_digest())
        if len(set(digests)) != 1:
            raise EngineError("the engines' weights differ")
        return digests[0]

    async def healthy(self) -> bool:
        return all(await asyncio.gather(*(member.engine.healthy() for member in self._members)))

    async def metrics(self) -> dict[str, float]:
        """Sums over the engines; means of shares."""
        rows = await self._each(lambda engine: engine.metrics())
        names = {name for row in rows for name in row}
        return {
            name: sum(row.get(name, 0.0) for row in rows) / (len(rows) if name.endswith(_RATIOS) else 1)
            for name in names
        }

    async def token_gaps(self) -> dict[float, float]:
        rows = await self._each(lambda engine: engine.token_gaps())
        return {bound: sum(row.get(bound, 0.0) for row in rows) for bound in sorted({b for row in rows for b in row})}

    async def close(self) -> None:
        """Every client, whatever happens to the others."""
        clients = [*(member.engine for member in self._members), *([self._router] if self._router else [])]
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)

    def _versioned(self, request: GenerateRequest) -> GenerateRequest:
        return request if request.weights else replace(request, weights=self._weights)

    async def _member_for(self, adapter: str, weights: str, tried: Sequence[_Member]) -> _Member:
        """The first that holds this and was not tried. Behind a router, which may choose any, all must hold it."""
        for member in self._members:
            holds = member not in tried and await self._holds(member, adapter, weights)
            if holds and not self._router:
                return member
            if self._router and not holds:
                break
        else:
            if self._router and self._members:
                return self._members[0]
        problems = "; ".join(member.problem for member in self._members if member.problem)
        raise EngineError(f"no engine can serve this: {problems or 'no engine is known'}")

    async def _holds(self, member: _Member, adapter: str, weights: str) -> bool:
        """Whether it has said so; asked when it has not, at most once in a while."""
        async with member.asking:
            if member.confirmed is not None and not _lack(member.confirmed, adapter, weights):
                return True
            if time.monotonic() - member.asked_at < RECHECK_SECONDS:
                return False
            try:
                member.confirmed = await member.engine.info()
            except WorkerError as error:
                member.confirmed, member.problem = None, str(error)
                return False
            finally:
                member.asked_at = time.monotonic()
            lack = _lack(member.confirmed, adapter, weights)
            member.problem = f"{member.url} {lack}" if lack else ""
            return not lack

    def _goes_on(self, tried: Sequence[_Member], error: WorkerError) -> bool:
        """Forget what the engine that failed had confirmed; whether another one is left to be asked."""
        if not error.retryable:
            return False
        for member in self._members if self._router else tried[-1:]:
            member.confirmed, member.problem, member.asked_at = None, str(error), float("-inf")  # asked anew at once
        return not self._router and len(tried) < len(self._members)

    async def _each(self, call: Callable[[RolloutEngine], Awaitable[T]], *, forgiving: bool = False) -> list[T]:
        """Side by side. Raises one EngineError that names every engine that failed; the others have done it."""
        answers = await asyncio.gather(*(call(m.engine) for m in self._members), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, WorkerError):
                raise answer
        failures = [answer for answer in answers if isinstance(answer, WorkerError)]
        if failures and not forgiving:
            statuses = {error.status if isinstance(error, EngineError) else 0 for error in failures}
            raise EngineError(
                "; ".join(map(str, failures)),
                status=statuses.pop() if len(statuses) == 1 else 0,
                retryable=all(error.retryable for error in failures),
            )
        return [answer for answer in answers if not isinstance(answer, BaseException)]


def _lack(info: EngineInfo, adapter: str, weights: str) -> str:
    """What an engine lacks to serve this; empty when nothing."""
    if adapter and adapter not in info.adapters:
        return f"does not hold adapter {adapter}"
    if weights and not is_served(info.weight_version, weights):
        return f"has weights {info.weight_version!r}, not {weights!r}"
    return ""
