"""Running an engine's command-line client to its end: output bounded, time bounded, never left behind."""

import asyncio
import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

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
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(timeout):
            with contextlib.suppress(ConnectionError):
                process.stdin.write(stdin)
                await process.stdin.drain()
            process.stdin.close()
            stdout, stderr = await asyncio.gather(_bounded(process.stdout), _bounded(process.stderr))
            await process.wait()
    except TimeoutError:
        return Done(-1, "", f"{argv[0]} {argv[1]} did not answer within {timeout:g} s")
    finally:
        await end_process(process)
    assert process.returncode is not None
    return Done(process.returncode, stdout, stderr)


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a client, if it still runs, and let go of its pipes, which what it has started may hold."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
    process._transport.close()  # type: ignore[attr-defined]  # asyncio has no public word for it


async def _bounded(stream: asyncio.StreamReader) -> str:
    kept = b""
    while data := await stream.read(65536):
        kept += data[: MAX_OUTPUT - len(kept)]
    return kept.decode(errors="replace")
