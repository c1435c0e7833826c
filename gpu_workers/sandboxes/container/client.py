"""Running an engine's command-line client to its end: time bounded, never left behind.

Not by asyncio's own processes: one that is cancelled while it starts can wait for ever (CPython 3.11).
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_workers.sandboxes.channel import readable, sealed
from gpu_workers.sandboxes.command import unavailable

MAX_OUTPUT = 4 * 2**20
CLIENT_SECONDS = 30.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class Done:
    """`code` is -1 when the client did not end in time."""

    code: int
    stdout: str
    stderr: str


class Client:
    """A running client; `errors` holds what it complains of.

    Not in the worker's folder: Podman's conmon leaves an empty file `oom` where it was started, with cgroup v1.
    """

    def __init__(
        self, argv: Sequence[str], *, stdin: int, stdout: int, errors: int, pass_fds: Sequence[int] = ()
    ) -> None:
        self.errors = errors
        self._process = subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=errors, pass_fds=pass_fds, cwd=tempfile.gettempdir()
        )
        self._ended = os.pidfd_open(self._process.pid)

    async def wait(self, timeout: float) -> int | None:
        """Its exit code; None when it has not ended in time."""
        try:
            async with asyncio.timeout(timeout):
                await readable(self._ended)
        except TimeoutError:
            return None
        return self._process.wait()

    def kill(self) -> None:
        """Safe to repeat; one that has ended is left alone."""
        self._process.kill()

    async def close(self) -> None:
        """Kill it, if it still runs, and wait until it is gone."""
        try:
            self.kill()
            await self.wait(END_SECONDS)
        finally:
            os.close(self._ended)


def find_client(program: str) -> str:
    """Path of the client. Raises WorkerError that says what to install."""
    if found := shutil.which(program):
        return found
    raise unavailable(
        f"there is no {program!r} on PATH; install it, or choose another SANDBOX_BACKEND "
        "(bubblewrap needs nothing but user namespaces)"
    )


async def run_client(argv: Sequence[str], *, stdin: bytes = b"", timeout: float = CLIENT_SECONDS) -> Done:
    """Run it and wait. A client that hangs is killed."""
    # Files without a name instead of pipes: what the client has started may hold them as long as it likes.
    source, output, errors = sealed(stdin, "stdin"), os.memfd_create("stdout"), os.memfd_create("stderr")
    try:
        client = Client(argv, stdin=source, stdout=output, errors=errors)
        try:
            code = await client.wait(timeout)
        finally:
            await client.close()
        if code is None:
            return Done(-1, "", f"{argv[0]} {argv[1]} did not answer within {timeout:g} s")
        return Done(code, written_to(output), written_to(errors))
    finally:
        for fd in (source, output, errors):
            os.close(fd)


def written_to(fd: int, limit: int = MAX_OUTPUT) -> str:
    """The start of what was written to such a file."""
    return os.pread(fd, limit, 0).decode(errors="replace")
