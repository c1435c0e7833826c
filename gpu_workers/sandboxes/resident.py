"""What sandboxes with a resident server inside have in common: calls, their bounds, their log, their end."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord
from gpu_workers.contracts.seams import ExecResult, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes.bounds import contract_files, workspace_path
from gpu_workers.sandboxes.channel import ChannelError, Reply
from gpu_workers.sandboxes.eventlog import EventLog

GRACE_SECONDS = 10.0  # beyond a call's own time-out, which the server inside enforces
RUNS_CODE = ("exec", "run", "call")  # operations that can bring their sandbox down
MAX_STDIN = 16 * 2**20
MIN_ERROR = 4096  # room for a complaint, however little was asked for


class ServerChannel(Protocol):
    """The way to the server inside. `kill` returns when every process of the sandbox is gone; safe to repeat."""

    async def request(self, message: dict[str, Any], *, timeout: float, output_limit: int) -> Reply: ...
    async def kill(self) -> None: ...
    def release(self) -> None: ...


class ResidentSandbox:
    """One episode's sandbox. Calls run one after another; nothing survives a call but files.

    A backend starts it, sets `_state` to running, and says in `files` how the workspace leaves.
    """

    def __init__(self, contract: EnvironmentContract, channel: ServerChannel, backend: str) -> None:
        self.contract = contract
        self.log = EventLog(backend=backend, contract_hash=contract.contract_hash)
        self._server = channel
        self._lock = asyncio.Lock()
        self._state = "new"  # new, running, ended
        self._ended_because = ""

    @property
    def record(self) -> SandboxRecord:
        return self.log.record()

    async def _write_contract_files(self) -> None:
        if files := contract_files(self.contract):
            # Part of the start: on a busy host it may take longer than a tool's own time.
            await self._write(files, self.contract.limits.setup_timeout_seconds)

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> ExecResult:
        """Run a program in the workspace. Raises WorkerError(INFRASTRUCTURE) when the sandbox itself broke."""
        if not argv or len(stdin) > MAX_STDIN or any("\0" in a for a in argv):
            raise WorkerError(
                Boundary.POLICY,
                f"exec needs a program, no NUL bytes and at most {MAX_STDIN} bytes of input",
                retryable=False,
            )
        message = {"op": "exec", "argv": list(argv), "stdin": stdin}
        return await self._call(message, " ".join(argv), timeout_seconds)

    async def run_python(
        self,
        source: str,
        *,
        function: str = "",
        arguments: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        service: str = "",
    ) -> ExecResult:
        """Run Python source in a process forked from the server: as a script, or `function(arguments)` of a module.

        With `function`, stdout holds exactly the text returned; what the code prints is in stderr. With `service` too,
        that one runs during the call and arguments["descriptor"] is the socket of its streams, or absent without it.
        """
        if not function:
            return await self._call({"op": "run", "source": source}, "python", timeout_seconds)
        message = {"op": "call", "source": source, "function": function, "arguments": dict(arguments or {})}
        message["service"] = service
        return await self._call(message, f"{function}() of {service}" if service else f"{function}()", timeout_seconds)

    async def serve(
        self, name: str, *, argv: Sequence[str] = (), source: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a program, or a Python script, that lives as long as the sandbox; it runs only during calls to it.

        The processes it has at the end of the first call are all that it may keep.
        """
        message = {"op": "serve", "service": name, "argv": list(argv), "source": source}
        await self._call(message | {"environment": dict(environment or {})}, f"serve {name}", None)

    async def write(self, path: str, data: bytes) -> None:
        """Write one file. Raises WorkerError(POLICY) when it cannot be written."""
        await self._write({workspace_path(path): data})

    async def _write(self, files: dict[str, bytes], timeout_seconds: float | None = None) -> None:
        result = await self._call({"op": "write", "files": files}, f"write {', '.join(files)}", timeout_seconds)
        if result.timed_out:
            message = f"writing {', '.join(files)} took more than {result.duration_seconds:.0f} s: the host is too busy"
            raise WorkerError(Boundary.INFRASTRUCTURE, message)
        if result.exit_code != 0:
            raise WorkerError(Boundary.POLICY, f"cannot write: {result.stderr.strip()}", retryable=False)

    async def read(self, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a regular file. Raises WorkerError(POLICY) when there is none to read."""
        message = {"op": "read", "path": workspace_path(path), "limit": limit}
        reply = await self._request(message, f"read {path}", None, output_limit=max(limit, MIN_ERROR))
        if reply.exit_code != 0:
            raise WorkerError(
                Boundary.POLICY, f"cannot read: {reply.stderr.decode(errors='replace').strip()}", retryable=False
            )
        return reply.stdout[:limit]

    async def close(self) -> None:
        """End everything. Safe to repeat."""
        await self._end("closed")
        self._server.release()

    async def _end(self, reason: str) -> None:
        if self._state != "ended":
            self._state = "ended"
            self._ended_because = reason
            self.log.add(f"end: {reason}")
        await self._server.kill()

    async def _call(self, message: dict[str, Any], label: str, timeout_seconds: float | None) -> ExecResult:
        reply = await self._request(message, label, timeout_seconds, output_limit=self.contract.limits.output_bytes)
        return ExecResult(
            exit_code=reply.exit_code,
            stdout=reply.stdout.decode(errors="replace"),
            stderr=reply.stderr.decode(errors="replace"),
            duration_seconds=reply.duration_seconds,
            timed_out=reply.timed_out,
            truncated=reply.truncated,
            limit_hit=reply.limit_hit,
        )

    async def _request(
        self, message: dict[str, Any], label: str, timeout_seconds: float | None, *, output_limit: int
    ) -> Reply:
        limits = self.contract.limits
        timeout = limits.tool_timeout_seconds if timeout_seconds is None else timeout_seconds
        message |= {
            "timeout": float(timeout),
            "output_limit": output_limit,
            "memory": limits.memory_bytes,
            "cpu": limits.cpu_seconds,
            "processes": limits.num_processes,
        }
        async with self._lock:
            if self._state != "running":
                raise self._broken(self._ended_because or "not started")
            reply: Reply | None
            try:
                reply = await self._server.request(message, timeout=timeout + GRACE_SECONDS, output_limit=output_limit)
            except TimeoutError:
                await self._end("no answer in time")
                reply = Reply(-9, b"", b"", timeout + GRACE_SECONDS, timed_out=True, truncated=False, limit_hit="")
            except ChannelError as error:
                reply = await self._last_words(error) if message["op"] in RUNS_CODE else None
                await self._end(str(error))
                if reply is None:
                    raise self._broken(str(error)) from error
            except BaseException:
                await self._end("call interrupted")
                raise
        reply = self._see_limits(reply)
        self._note(label, reply)
        return reply

    async def _last_words(self, error: ChannelError) -> Reply | None:
        """The result of a call that has ended its sandbox; None where nothing inside can have done it."""
        return None

    def _see_limits(self, reply: Reply) -> Reply:
        """The reply, with a limit that only the host has seen to be hit."""
        return reply

    def _broken(self, reason: str) -> WorkerError:
        return WorkerError(Boundary.INFRASTRUCTURE, f"the sandbox is not running: {reason}")

    def _note(self, label: str, reply: Reply) -> None:
        self.log.hit(reply.limit_hit)
        extra = "".join(
            text
            for text, applies in (
                (", timed out", reply.timed_out),
                (", output truncated", reply.truncated),
                (f", limit hit: {reply.limit_hit}", bool(reply.limit_hit)),
            )
            if applies
        )
        num_bytes = len(reply.stdout) + len(reply.stderr)
        shown = label if len(label) <= 200 else label[:200] + "…"
        self.log.add(f"{shown} -> exit {reply.exit_code}, {reply.duration_seconds:.4f} s, {num_bytes} bytes out{extra}")
