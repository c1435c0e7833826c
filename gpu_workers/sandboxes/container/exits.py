"""The worker's end of what leaves a container: its connections, from frames of its stream to the proxy.

Of each connection at most a window's worth of bytes is under way in either direction, so a slow side holds up nobody.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gpu_workers.sandboxes.container.inside.wire import (
    CHUNK,
    CLOSE,
    COUNT,
    CREDIT,
    DATA,
    END,
    NETWORK,
    OPEN,
    RELAY,
    WINDOW,
)

Serve = Callable[[socket.socket], Coroutine[Any, Any, None]]


class Writer(Protocol):
    """What carries frames inwards."""

    def write(self, data: bytes, kind: int = 0) -> None: ...
    async def drain(self) -> None: ...


class _Exit:
    """One connection: what the program inside has sent, and how much more it may be sent."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()  # b"": it sends no more
        self.num_sent = 0  # bytes in it
        self.credit = WINDOW
        self.more = asyncio.Event()  # credit has come
        self.task: asyncio.Task[None] | None = None


class Exits:
    """All connections of one container. `serve` is the proxy's side of one."""

    def __init__(self, serve: Serve) -> None:
        self.writer: Writer | None = None
        self._serve = serve
        self._exits: dict[int, _Exit] = {}

    def heard(self, message: bytes) -> None:
        """The server inside has said something of a connection. Raises ValueError on what it never says."""
        said, number = RELAY.unpack_from(message)
        if said == OPEN:
            made = self._exits[number] = _Exit()
            made.task = asyncio.create_task(self._carry(number, made))
            return
        found = self._exits.get(number)
        if found is None:
            return  # has ended meanwhile
        if said in (DATA, END):
            data = message[RELAY.size :] if said == DATA else b""
            found.num_sent += len(data)
            if found.num_sent > WINDOW:
                raise ValueError("more than a window")
            found.sent.put_nowait(data)
        elif said == CREDIT:
            found.credit += COUNT.unpack_from(message, RELAY.size)[0]
            found.more.set()
        elif found.task is not None:
            found.task.cancel()

    async def end(self) -> None:
        """End every connection. Safe to repeat."""
        tasks = [found.task for found in self._exits.values() if found.task is not None]
        self._exits.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _say(self, said: int, number: int, data: bytes = b"") -> None:
        assert self.writer is not None
        self.writer.write(RELAY.pack(said, number) + data, NETWORK)
        await self.writer.drain()

    async def _carry(self, number: int, found: _Exit) -> None:
        ours, theirs = socket.socketpair()
        tasks = [asyncio.create_task(self._serve(theirs))]
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                pumps = self._outwards(number, found, writer), self._inwards(number, found, reader)
                tasks += [asyncio.create_task(pump) for pump in pumps]
                with contextlib.suppress(OSError):  # either side is gone; the proxy has it in its log
                    await asyncio.gather(*tasks[1:])
            finally:
                writer.transport.abort()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            theirs.close()
            if self._exits.pop(number, None) is not None:
                with contextlib.suppress(OSError):
                    await self._say(CLOSE, number)

    async def _outwards(self, number: int, found: _Exit, writer: asyncio.StreamWriter) -> None:
        while data := await found.sent.get():
            writer.write(data)
            await writer.drain()
            found.num_sent -= len(data)
            await self._say(CREDIT, number, COUNT.pack(len(data)))
        writer.write_eof()

    async def _inwards(self, number: int, found: _Exit, reader: asyncio.StreamReader) -> None:
        while True:
            while found.credit <= 0:
                found.more.clear()
                await found.more.wait()
            data = await reader.read(min(CHUNK, found.credit))
            found.credit -= len(data)
            await self._say(DATA if data else END, number, data)
            if not data:
                return
