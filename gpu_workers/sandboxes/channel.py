"""The host's end of a sandbox: starts the bubblewrap process and speaks with the resident server inside."""

import array
import asyncio
import contextlib
import fcntl
import marshal
import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gpu_workers.sandboxes.inside.wire import HELLO, LIMITS, REPLY, REQUEST_LENGTH, TIMED_OUT, TRUNCATED

CREDENTIALS = struct.Struct("3i")
MAX_REQUEST = 64 * 2**20
MAX_START_ERROR = 4096
EXIT_SECONDS = 2.0  # for bubblewrap to end after process 1


class ChannelError(RuntimeError):
    """The sandbox is gone or speaks nonsense."""


@dataclass(frozen=True)
class Reply:
    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_seconds: float
    timed_out: bool
    truncated: bool
    limit_hit: str


def sealed(data: bytes, name: str) -> int:
    """Descriptor of an anonymous file that nobody can change any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@dataclass(frozen=True)
class Identity:
    """Host user that a sandbox runs as; None: the worker's own."""

    uid: int | None = None
    gid: int | None = None

    def program(self, argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """What to start so that it runs as this user, and the words for Popen.

        By setpriv: Popen's own change of user copies the page tables of the whole worker, 38 ms of one with 600 MiB.
        """
        if self.uid is None:
            return list(argv), {}
        if setpriv := _find_setpriv():
            return [setpriv, f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--", *argv], {}
        return list(argv), {"user": self.uid, "group": self.gid, "extra_groups": []}


@lru_cache(maxsize=1)
def _find_setpriv() -> str | None:
    return shutil.which("setpriv", path="/usr/bin:/bin")


class Conversation:
    """Requests and replies over a pair of streams. Not safe for use by two calls at once."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def request(self, message: dict[str, Any], *, timeout: float, output_limit: int) -> Reply:
        """One call. Raises TimeoutError when the server does not answer, ChannelError when it is gone."""
        assert self.reader is not None and self.writer is not None
        data = marshal.dumps(message, 2)
        if len(data) > MAX_REQUEST:
            raise ChannelError(f"a request of {len(data)} bytes is too large (limit {MAX_REQUEST})")
        try:
            async with asyncio.timeout(timeout):
                self.writer.write(REQUEST_LENGTH.pack(len(data)) + data)
                await self.writer.drain()
                return await self._read_reply(self.reader, output_limit)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise ChannelError("it ended during the call") from error

    async def _read_reply(self, reader: asyncio.StreamReader, output_limit: int) -> Reply:
        header = await reader.readexactly(REPLY.size)
        exit_code, flags, limit, seconds, num_stdout, num_stderr = REPLY.unpack(header)
        if num_stdout > output_limit or num_stderr > output_limit or limit >= len(LIMITS):
            raise ChannelError("it sent a malformed reply")
        return Reply(
            exit_code=exit_code,
            stdout=await reader.readexactly(num_stdout),
            stderr=await reader.readexactly(num_stderr),
            duration_seconds=seconds,
            timed_out=bool(flags & TIMED_OUT),
            truncated=bool(flags & TRUNCATED),
            limit_hit=LIMITS[limit],
        )


class Channel(Conversation):
    """One running sandbox of bubblewrap."""

    def __init__(self) -> None:
        super().__init__()
        self.monitor: subprocess.Popen[bytes] | None = None
        self.monitor_fd = -1  # pidfd of bubblewrap's outer process
        self.server_fd = -1  # pidfd of process 1 inside
        self.workspace_fd = -1  # keeps the workspace readable after the namespaces are gone
        self.server_pid = 0  # number of process 1 inside, as the host counts
        self.listener: socket.socket | None = None  # the way out of its network, where one was asked for
        self._socket: socket.socket | None = None
        self._killing = asyncio.Lock()

    async def start(self, argv: Sequence[str], *, identity: Identity, pass_fds: Sequence[int], timeout: float) -> None:
        """Start the process and wait until the server inside says hello. Raises ChannelError with its complaint.

        The kernel kills a sandbox when the thread that started it ends, so it starts in the loop's own thread.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = ours
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.setblocking(False)
        program, words = identity.program(argv)
        with theirs:
            self.monitor = subprocess.Popen(
                program,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=pass_fds,
                **words,
            )
        self.monitor_fd = os.pidfd_open(self.monitor.pid)
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 can swallow the caller's cancellation
                await readable(ours.fileno())
        except TimeoutError as error:
            raise ChannelError(f"no sign of life within {timeout:g} s") from error
        self._take_hello(ours)
        self.reader, self.writer = await asyncio.open_unix_connection(sock=ours)
        self._socket = None

    def _take_hello(self, ours: socket.socket) -> None:
        space = socket.CMSG_SPACE(8) + socket.CMSG_SPACE(CREDENTIALS.size)
        try:
            data, ancillary, _, _ = ours.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.workspace_fd, *others = array.array("i", payload[: len(payload) // 4 * 4])
                self.listener = socket.socket(fileno=others[0]) if others else None
            elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.server_pid = CREDENTIALS.unpack(payload[: CREDENTIALS.size])[0]
        if data != HELLO or self.workspace_fd < 0 or not self.server_pid:
            raise ChannelError(self._start_complaint() or "ended before it was ready")
        self.server_fd = os.pidfd_open(self.server_pid)

    def _start_complaint(self) -> str:
        """What the process wrote before it ended."""
        assert self.monitor is not None and self.monitor.stderr is not None
        os.set_blocking(self.monitor.stderr.fileno(), False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.monitor.wait(timeout=1)
        data = self.monitor.stderr.read(MAX_START_ERROR) or b""
        return data.decode(errors="replace").strip()

    async def exit_code(self) -> int:
        """How process 1 has ended, as bubblewrap passes it on: above 128 or below 0 by a signal; 0 where unknown."""
        async with self._killing:
            if self.monitor is None:
                return 0  # ended from here
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS):
                    await readable(self.monitor_fd)
            return self.monitor.poll() or 0

    async def kill(self) -> None:
        """End every process of the sandbox and return when they are gone. Safe to repeat, and from several tasks."""
        async with self._killing:
            await self._kill()

    async def _kill(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
            self.writer = self.reader = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if self.server_fd >= 0:
            # Process 1 is reported dead only after the kernel has killed and reaped its whole pid namespace.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.server_fd, signal.SIGKILL)
            await readable(self.server_fd)
            os.close(self.server_fd)
            self.server_fd = -1
        if self.monitor is not None:
            if self.monitor.poll() is None:
                self.monitor.kill()
                await readable(self.monitor_fd)
                self.monitor.wait()
            if self.monitor.stderr is not None:
                self.monitor.stderr.close()
            os.close(self.monitor_fd)
            self.monitor, self.monitor_fd = None, -1

    def release(self) -> None:
        """Give up the workspace."""
        if self.workspace_fd >= 0:
            os.close(self.workspace_fd)
            self.workspace_fd = -1


async def readable(fd: int) -> None:
    """Wait until a descriptor is readable; a pidfd is when its process has ended."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, set_ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
