"""The host's end of a container: its client's process, authenticated frames over its pipes, its removal."""

import asyncio
import contextlib
import hmac
import marshal
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.channel import ChannelError, Conversation
from gpu_workers.sandboxes.container import inside
from gpu_workers.sandboxes.container.client import end_process
from gpu_workers.sandboxes.container.inside import FRAME

MAX_COMPLAINT = 4096
MAX_FACTS = 16 * 2**10


class ForgedError(ChannelError):
    """Bytes in the stream that the server inside has not written: a process of the policy has."""


class FrameReader:
    """Bytes of authenticated frames, in the shape of a stream."""

    def __init__(self, stream: asyncio.StreamReader, key: bytes, max_bytes: int) -> None:
        self._stream = stream
        self._key = key
        self._max_bytes = max_bytes
        self._buffer = memoryview(b"")
        self._number = 0

    async def frame(self) -> bytes:
        """The next whole frame. Raises ForgedError when it is not the server's."""
        length, code = FRAME.unpack(await self._stream.readexactly(FRAME.size))
        if length > self._max_bytes:
            raise ForgedError("it sent a frame that is too long")
        data = await self._stream.readexactly(length)
        if not hmac.compare_digest(code, _hash(self._key, b"<", self._number, data)):
            raise ForgedError("it sent a frame that is not the server's")
        self._number += 1
        return data

    async def readexactly(self, size: int) -> bytes:
        if not self._buffer and size:
            self._buffer = memoryview(await self.frame())
        if size > len(self._buffer):
            raise ForgedError("it sent a malformed reply")
        part, self._buffer = bytes(self._buffer[:size]), self._buffer[size:]
        return part


class FrameWriter:
    """Writes each message as one authenticated frame."""

    def __init__(self, stream: asyncio.StreamWriter, key: bytes) -> None:
        self._stream = stream
        self._key = key
        self._number = 0

    def write(self, data: bytes) -> None:
        self._stream.write(FRAME.pack(len(data), _hash(self._key, b">", self._number, data)))
        self._stream.write(data)
        self._number += 1

    async def drain(self) -> None:
        await self._stream.drain()


def _hash(key: bytes, direction: bytes, number: int, data: bytes) -> bytes:
    state = blake2b(direction + number.to_bytes(8, "little"), key=key, digest_size=16)
    state.update(data)
    return state.digest()


@lru_cache(maxsize=1)
def _modules() -> list[tuple[str, str]]:
    """Sources of the server in the order of their imports: the image's own interpreter compiles them."""
    parents = ["gpu_workers", "gpu_workers.sandboxes", command.PACKAGE, "gpu_workers.sandboxes.container"]
    sources = [(name, "") for name in parents]
    for name in command.MODULES:
        sources.append((f"{command.PACKAGE}.{name}", (command.INSIDE / f"{name}.py").read_text(encoding="utf-8")))
    return [*sources, (inside.__name__, Path(inside.__file__).read_text(encoding="utf-8"))]


def boot_message(config: Mapping[str, Any]) -> bytes:
    """What the first program inside reads: the modules and their configuration."""
    data = marshal.dumps((_modules(), dict(config)), 2)
    return len(data).to_bytes(4, "little") + data


class ContainerChannel(Conversation):
    """One container's stream."""

    def __init__(self, max_frame: int) -> None:
        super().__init__()
        self.process: asyncio.subprocess.Process | None = None
        self._max_frame = max_frame
        self._complaint = bytearray()
        self._drain: asyncio.Task[None] | None = None

    async def start(self, argv: Sequence[str], *, config: Mapping[str, Any], pass_fds: Sequence[int]) -> dict[str, str]:
        """Start the client, hand over the server; the facts it finds inside. Raises ChannelError with the complaint."""
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=pass_fds
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._drain = asyncio.create_task(self._keep_complaint())
        key = secrets.token_bytes(32)
        reader = FrameReader(self.process.stdout, key, self._max_frame)
        try:
            self.process.stdin.write(boot_message({**config, "key": key}))
            await self.process.stdin.drain()
            facts = (await reader.frame())[:MAX_FACTS].decode(errors="replace")
        except (ConnectionError, asyncio.IncompleteReadError, ForgedError) as error:
            raise ChannelError(await self.complaint() or f"it ended before it was ready ({error})") from error
        self.reader = cast(asyncio.StreamReader, reader)  # all of it that a conversation needs
        self.writer = cast(asyncio.StreamWriter, FrameWriter(self.process.stdin, key))
        return dict(line.split("=", 1) for line in facts.splitlines() if "=" in line)

    async def _keep_complaint(self) -> None:
        assert self.process is not None and self.process.stderr is not None
        while data := await self.process.stderr.read(4096):
            self._complaint += data[: MAX_COMPLAINT - len(self._complaint)]

    async def complaint(self) -> str:
        """What the client wrote before it ended."""
        if self.process is not None and self._drain is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await asyncio.shield(self._drain)
        return self._complaint.decode(errors="replace").strip()

    def stop_client(self) -> None:
        """Kill the client's process; the container itself is the engine's to remove. Safe to repeat."""
        self.reader = self.writer = None
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def finish_client(self) -> None:
        """Wait for it, and for its pipes, which what it has started may hold. Safe to repeat."""
        process, self.process = self.process, None
        drain, self._drain = self._drain, None
        if process is not None:
            await end_process(process)
        if drain is not None:
            drain.cancel()
            await asyncio.gather(drain, return_exceptions=True)
