"""What the engines of one conformance suite need to be asked the same: how long is long, and adapters that fit."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, RolloutEngine, WorkerError


@dataclass
class Case:
    """One engine under test. `long`: tokens that no test waits for; `medium`: that a test lets run to the end."""

    engine: RolloutEngine
    adapter: Callable[..., Path]  # folder, seed=, std= -> a PEFT folder for its model
    weights: tuple[Path, Path]  # model folders: what it serves, and other weights of the same shapes
    prompt: tuple[int, ...]  # greedy, its answer is long
    long: int
    medium: int
    patience: float  # seconds
    seeded: bool = True
    max_adapters: int = 3
    checks_vocabulary: bool = True
    survives_torn_files: bool = True
    is_fleet: bool = False  # which sends nothing to an engine that does not list the adapter

    def ask(
        self,
        max_new_tokens: int = 8,
        *,
        rid: str = "",
        adapter: str = "",
        stop_ids: tuple[int, ...] = (),
        prompt: tuple[int, ...] = (),
        **sampling: float,
    ) -> GenerateRequest:
        """Greedy unless told otherwise: what an engine repeats, whatever it makes of a seed."""
        return GenerateRequest(
            prompt or self.prompt,
            Sampling(max_new_tokens=max_new_tokens, **{"temperature": 0.0, **sampling}),
            adapter=adapter,
            request_id=rid,
            stop_token_ids=stop_ids,
        )

    async def within(self, awaitable):
        return await asyncio.wait_for(awaitable, self.patience)

    async def begin(self, request: GenerateRequest) -> "asyncio.Task[GenerateResult]":
        """A request that has its first token and goes on."""
        first = asyncio.Event()

        async def read() -> GenerateResult:
            last = GenerateResult([], [], "")
            async for last in self.engine.stream(request):
                if last.output_ids:
                    first.set()
            return last

        task = asyncio.create_task(read())
        waiting = asyncio.create_task(first.wait())
        done, _ = await self.within(asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED))
        waiting.cancel()
        assert task not in done, f"the request ended at once: {task.result()}"
        return task

    async def until_busy(self) -> None:
        """Until the engine works on something, which is when it refuses to flush."""
        await self._until_flush(refused=True)

    async def until_idle(self) -> None:
        await self._until_flush(refused=False)

    async def _until_flush(self, *, refused: bool) -> None:
        async def poll() -> None:
            while True:
                was_refused = False
                try:
                    await self.engine.flush_cache()
                except WorkerError:
                    was_refused = True
                if was_refused is refused:
                    return
                await asyncio.sleep(0.02)

        await self.within(poll())

    async def reset(self) -> None:
        """As it was: going, idle, without adapters."""
        await self.engine.resume()
        await self.until_idle()
        if (await self.engine.info()).weight_version != "default":
            await self.engine.update_weights(str(self.weights[0]), "default")
        for name in (await self.engine.info()).adapters:
            with contextlib.suppress(WorkerError):
                await self.engine.unload_adapter(name)
