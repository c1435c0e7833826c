"""A start that goes on beside other work: few of a loop's at a time, and at once when somebody waits for it."""

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_STARTS = max(2, os.cpu_count() or 1)  # of one event loop: more would only make each other late

_GATES: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = weakref.WeakKeyDictionary()


class BackgroundStart(Generic[T]):
    """One start, begun when it is this one's turn. Either `take` or `cancel` must follow."""

    def __init__(self, start: Callable[[], Awaitable[T]]) -> None:
        self._start = start
        self._has_begun = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> T:
        async with _gate():
            self._has_begun = True
            return await self._start()

    async def take(self) -> T:
        """What it has made, or raised. Whoever waits here is not kept waiting for the turn of others."""
        if self._has_begun:
            return await self._task  # cancelled with whoever waits
        await self.cancel()
        return await self._start()

    async def cancel(self) -> None:
        """End it where it is and wait until it has cleaned up; what it has made already is the caller's to close."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _gate() -> asyncio.Semaphore:
    loop = asyncio.get_running_loop()
    gate = _GATES.get(loop)
    if gate is None:
        gate = _GATES[loop] = asyncio.Semaphore(MAX_STARTS)
    return gate
