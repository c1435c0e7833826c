"""The fake backend "none": a temporary folder and plain processes of the host; it isolates nothing, for tests only."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord
from gpu_workers.contracts.seams import ExecResult, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes.bounds import check_contract, contract_files, workspace_path
from gpu_workers.sandboxes.eventlog import EventLog
from gpu_workers.sandboxes.snapshot import read_folder

RUN_FUNCTION = """
import json, os, sys
request = json.load(sys.stdin)
result = os.dup(1)
os.dup2(2, 1)
space = {"__name__": "tool"}
exec(compile(request["source"], "<tool>", "exec"), space)
text = space[request["function"]](request["arguments"])
sys.stdout.flush()
os.write(result, (text if isinstance(text, str) else repr(text)).encode())
"""


class LocalBackend:
    """Makes folders that behave like sandboxes as long as nobody is hostile."""

    name = "none"

    def __init__(self, environment: str | None = None) -> None:
        environment = os.environ.get("RATCHET_ENV", "") if environment is None else environment
        if environment == "production":
            raise WorkerError(
                Boundary.INFRASTRUCTURE,
                'the sandbox backend "none" isolates nothing and is refused in production; use bubblewrap',
                retryable=False,
            )

    async def probe(self) -> str:
        return "none: no isolation"

    def create(self, contract: EnvironmentContract) -> "LocalSandbox":
        check_contract(contract)
        return LocalSandbox(contract)


class LocalSandbox:
    """A folder; calls run one after another."""

    def __init__(self, contract: EnvironmentContract) -> None:
        self.contract = contract
        self.log = EventLog(backend=LocalBackend.name, isolation="none: no isolation")
        self._folder: Path | None = None
        self._files: dict[str, bytes] | None = None
        self._lock = asyncio.Lock()

    @property
    def record(self) -> SandboxRecord:
        return self.log.record()

    async def start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ratchet-local-"))
        self.log.add("start")
        for path, data in contract_files(self.contract).items():
            await self.write(path, data)

    def _root(self) -> Path:
        if self._folder is None:
            raise WorkerError(Boundary.INFRASTRUCTURE, "the sandbox is not running")
        return self._folder

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> ExecResult:
        limits = self.contract.limits
        timeout = limits.tool_timeout_seconds if timeout_seconds is None else timeout_seconds
        async with self._lock:
            root = self._root()
            loop = asyncio.get_running_loop()
            started = loop.time()
            environment = {**self.contract.environment, "PATH": os.defpath, "HOME": str(root)}
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv, cwd=root, env=environment, start_new_session=True,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                )  # fmt: skip
            except OSError as error:
                return ExecResult(127, "", f"{argv[0]}: {error.strerror}\n", loop.time() - started)
            timed_out = False
            streams: list[tuple[bytes, bool]] = [(b"", False), (b"", False)]
            try:
                async with asyncio.timeout(timeout):
                    streams = await _communicate(process, stdin, limits.output_bytes)
            except TimeoutError:
                timed_out = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            (stdout, cut_out), (stderr, cut_err) = streams
            seconds = loop.time() - started
            self.log.add(f"{' '.join(argv)[:200]} -> exit {process.returncode}, {seconds:.4f} s")
            return ExecResult(
                exit_code=process.returncode or 0,
                stdout=stdout.decode(errors="replace"),
                stderr=stderr.decode(errors="replace"),
                duration_seconds=seconds,
                timed_out=timed_out,
                truncated=cut_out or cut_err,
            )

    async def run_python(
        self,
        source: str,
        *,
        function: str = "",
        arguments: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        service: str = "",
    ) -> ExecResult:
        if not function:
            return await self.exec([sys.executable, "-I", "-c", source], timeout_seconds=timeout_seconds)
        request = json.dumps({"source": source, "function": function, "arguments": dict(arguments or {})})
        argv = [sys.executable, "-I", "-c", RUN_FUNCTION]
        return await self.exec(argv, stdin=request.encode(), timeout_seconds=timeout_seconds)

    async def serve(
        self, name: str, *, argv: Sequence[str] = (), source: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        message = f'service {name!r}: the sandbox backend "none" runs no services; use bubblewrap'
        raise WorkerError(Boundary.ENVIRONMENT, message, retryable=False)

    async def write(self, path: str, data: bytes) -> None:
        target = self._root() / workspace_path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise WorkerError(Boundary.POLICY, f"cannot write: {error.strerror}", retryable=False) from error

    async def read(self, path: str, limit: int) -> bytes:
        target = self._root() / workspace_path(path)
        if not target.is_file():
            raise WorkerError(Boundary.POLICY, f"cannot read: {path} is not a regular file", retryable=False)
        with target.open("rb") as file:
            return file.read(limit)

    async def files(self) -> dict[str, bytes]:
        if self._files is None:
            fd = os.open(self._root(), os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._files = read_folder(fd, self.contract.limits.disk_bytes).files
            finally:
                os.close(fd)
            await self.close()
        return self._files

    async def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            self.log.add("end: closed")
            shutil.rmtree(folder, ignore_errors=True)


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes, limit: int) -> list[tuple[bytes, bool]]:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()
    return list(await asyncio.gather(_read(process.stdout, limit), _read(process.stderr, limit)))


async def _read(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    """First `limit` bytes of a stream; the rest is thrown away."""
    kept, cut = b"", False
    while data := await stream.read(65536):
        cut = cut or len(kept) + len(data) > limit
        kept += data[: limit - len(kept)]
    return kept, cut
