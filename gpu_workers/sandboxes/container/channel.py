"""The host's end of a container: its client's process, authenticated frames over its pipes, its removal."""

import asyncio
import hmac
import marshal
import os
import secrets
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.channel import ChannelError, Conversation, Reply
from gpu_workers.sandboxes.container.client import Client, written_to
from gpu_workers.sandboxes.container.exits import Exits
from gpu_workers.sandboxes.container.inside.wire import CALLS, FRAME, HASH_BYTES, HASHED, INWARDS, KEY_BYTES, OUTWARDS

INSIDE = Path(__file__).parent / "inside"
PACKAGE = "gpu_workers.sandboxes.container.inside"
MODULES = ("wire", "frames", "relay", "kernel", "files", "server")  # in the order of their imports
MAX_COMPLAINT = 4096
COMPLAINT_SECONDS = 2.0
MAX_FACTS = 16 * 2**10


class ForgedError(ChannelError):
    """Bytes in the stream that the server inside has not written: a process of the policy has."""


class FrameReader:
    """Bytes of authenticated frames, in the shape of a stream. `traffic` gets what is no word of a call."""

    def __init__(self, stream: asyncio.StreamReader, key: bytes, max_bytes: int) -> None:
        self.traffic: Callable[[bytes], None] | None = None
        self._stream = stream
        self._key = key
        self._max_bytes = max_bytes
        self._buffer = memoryview(b"")
        self._number = 0

    async def frame(self) -> bytes:
        """The next whole frame of a call. Raises ForgedError when it is not the server's."""
        while True:
            kind, length, code = FRAME.unpack(await self._stream.readexactly(FRAME.size))
            if length > self._max_bytes:
                raise ForgedError("it sent a frame that is too long")
            data = await self._stream.readexactly(length)
            if not hmac.compare_digest(code, _hash(self._key, OUTWARDS, self._number, kind, data)):
                raise ForgedError("it sent a frame that is not the server's")
            self._number += 1
            if kind == CALLS:
                return data
            if self.traffic is None:
                raise ForgedError("it sent network traffic, and none was granted")
            try:
                self.traffic(data)
            except (ValueError, struct.error) as error:
                raise ForgedError(f"it sent malformed network traffic: {error}") from error

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

    def write(self, data: bytes, kind: int = CALLS) -> None:
        self._stream.write(FRAME.pack(kind, len(data), _hash(self._key, INWARDS, self._number, kind, data)))
        self._stream.write(data)
        self._number += 1

    async def drain(self) -> None:
        await self._stream.drain()


def _hash(key: bytes, direction: bytes, number: int, kind: int, data: bytes) -> bytes:
    state = blake2b(HASHED.pack(direction, number, kind), key=key, digest_size=HASH_BYTES)
    state.update(data)
    return state.digest()


@lru_cache(maxsize=1)
def _modules() -> list[tuple[str, str]]:
    """Sources of the server in the order of their imports: the image's own interpreter compiles them."""
    container = f"{command.PACKAGE.rpartition('.')[0]}.container"
    sources = [(name, "") for name in ("gpu_workers", "gpu_workers.sandboxes", command.PACKAGE, container, PACKAGE)]
    for package, folder, names in ((command.PACKAGE, command.INSIDE, command.MODULES), (PACKAGE, INSIDE, MODULES)):
        sources += [(f"{package}.{name}", (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return sources


def boot_message(config: Mapping[str, Any], key: bytes) -> bytes:
    """What the first program inside reads: the modules and their configuration, then the key of all that follows."""
    data = marshal.dumps((_modules(), dict(config)), 2)
    return len(data).to_bytes(4, "little") + data + key


class ContainerChannel(Conversation):
    """One container's stream: the standard input and output of its client, as one socket."""

    def __init__(self, max_frame: int) -> None:
        super().__init__()
        self.exits: Exits | None = None  # where network is granted
        self._max_frame = max_frame
        self._client: Client | None = None
        self._stream: asyncio.StreamWriter | None = None

    async def start(self, argv: Sequence[str], *, config: Mapping[str, Any], pass_fds: Sequence[int]) -> dict[str, str]:
        """Start the client, hand over the server; the facts it finds inside. Raises ChannelError with the complaint."""
        ours, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            self._client = Client(
                argv, stdin=end, stdout=end, errors=os.memfd_create("stderr", os.MFD_CLOEXEC), pass_fds=pass_fds
            )
        stream, self._stream = await asyncio.open_connection(sock=ours)
        key = secrets.token_bytes(KEY_BYTES)
        reader, writer = FrameReader(stream, key, self._max_frame), FrameWriter(self._stream, key)
        if self.exits is not None:
            self.exits.writer, reader.traffic = writer, self.exits.heard
        try:
            self._stream.write(boot_message(config, key))
            await self._stream.drain()
            facts = (await reader.frame())[:MAX_FACTS].decode(errors="replace")
        except (ConnectionError, asyncio.IncompleteReadError, ForgedError) as error:
            raise ChannelError(await self.complaint() or f"it ended before it was ready ({error})") from error
        self.reader = cast(asyncio.StreamReader, reader)  # all of it that a conversation needs
        self.writer = cast(asyncio.StreamWriter, writer)
        return dict(line.split("=", 1) for line in facts.splitlines() if "=" in line)

    async def request(self, message: dict[str, Any], *, timeout: float, output_limit: int) -> Reply:
        """As of any conversation; what the call's processes have opened to the outside ends with it."""
        try:
            return await super().request(message, timeout=timeout, output_limit=output_limit)
        finally:
            if self.exits is not None:
                await self.exits.end()

    async def complaint(self) -> str:
        """What the client wrote before it ended."""
        if self._client is None:
            return ""
        await self._client.wait(COMPLAINT_SECONDS)
        return written_to(self._client.errors, MAX_COMPLAINT).strip()

    def stop_client(self) -> None:
        """Kill the client's process; the container itself is the engine's to remove. Safe to repeat."""
        self.reader = self.writer = None
        if self._stream is not None:
            self._stream.transport.abort()
        if self._client is not None:
            self._client.kill()

    async def finish_client(self) -> None:
        """Wait for it. Safe to repeat."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
            os.close(client.errors)
