"""Sandboxes of bubblewrap: one set of namespaces per episode with a resident server and the workspace as a tmpfs."""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord
from gpu_workers.contracts.seams import ExecResult, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.bounds import check_contract, workspace_path
from gpu_workers.sandboxes.channel import Channel, ChannelError, Identity, Reply, sealed
from gpu_workers.sandboxes.eventlog import EventLog
from gpu_workers.sandboxes.seccomp import filter_program
from gpu_workers.sandboxes.snapshot import Snapshot, read_folder

SANDBOX_UID = 64_717  # of no account; only used when the worker is root
START_TIMEOUT_SECONDS = 60.0
GRACE_SECONDS = 10.0  # beyond a call's own time-out, which the server inside enforces
MAX_STDIN = 16 * 2**20
MIN_ERROR = 4096  # room for a complaint, however little was asked for


class BubblewrapBackend:
    """Makes bubblewrap sandboxes; may be shared by threads."""

    name = "bubblewrap"

    def __init__(self, uid: int = SANDBOX_UID) -> None:
        self.identity = Identity(uid, uid) if os.geteuid() == 0 else Identity()

    async def probe(self) -> str:
        """Run `true` in a sandbox as episodes get it; the isolation applied. Raises WorkerError saying what to do."""
        sandbox = self.create(EnvironmentContract())
        try:
            await sandbox.start()
            result = await sandbox.exec(["true"])
            if result.exit_code != 0:
                raise command.unavailable(f"`true` inside a sandbox gave exit code {result.exit_code}: {result.stderr}")
            return sandbox.record.isolation
        finally:
            await sandbox.close()

    def create(self, contract: EnvironmentContract) -> "BubblewrapSandbox":
        """A sandbox that is not started. Raises WorkerError on a contract that asks for more than can be granted."""
        check_contract(contract)
        return BubblewrapSandbox(contract, self.identity)


class BubblewrapSandbox:
    """One episode's sandbox. Calls run one after another; nothing survives a call but files."""

    def __init__(self, contract: EnvironmentContract, identity: Identity) -> None:
        self.contract = contract
        self.log = EventLog(backend=BubblewrapBackend.name)
        self._identity = identity
        self._channel = Channel()
        self._lock = asyncio.Lock()
        self._state = "new"  # new, running, ended
        self._ended_because = ""
        self._snapshot: Snapshot | None = None

    @property
    def record(self) -> SandboxRecord:
        return self.log.record()

    async def start(self) -> None:
        """Start the namespaces and write the contract's files."""
        assert self._state == "new", "a sandbox starts once"
        bwrap, python = command.find_bwrap(), command.find_python()
        descriptors = [
            sealed(filter_program(), "seccomp"),
            sealed(python.server, "server"),
            os.open(bwrap, os.O_RDONLY),
        ]
        # By descriptor: the binary may lie in a folder that the sandbox's user cannot enter.
        binary = f"/proc/self/fd/{descriptors[2]}"
        argv = command.command_line(binary, python, self.contract, seccomp_fd=descriptors[0], server_fd=descriptors[1])
        try:
            await self._channel.start(
                argv, identity=self._identity, pass_fds=descriptors, timeout=START_TIMEOUT_SECONDS
            )
        except (ChannelError, OSError) as error:
            await self._end("start failed")
            raise command.unavailable(
                f"bubblewrap cannot start: {error}. {command.why_no_namespaces()}".strip()
            ) from error
        except BaseException:
            await self._end("start interrupted")
            raise
        finally:
            for fd in descriptors:
                os.close(fd)
        self._state = "running"
        self.log.isolation = self._isolation(python.path)
        self.log.add("start")
        if self.contract.files:
            files = {workspace_path(p): text.encode() for p, text in self.contract.files.items()}
            # Part of the start: on a busy host it may take longer than a tool's own time.
            await self._write(files, START_TIMEOUT_SECONDS)

    def _isolation(self, python: str) -> str:
        uid = os.geteuid() if self._identity.uid is None else self._identity.uid
        limits = self.contract.limits
        return (
            f"{bwrap_version(command.find_bwrap())}: user, pid, net, ipc, uts, cgroup namespaces; seccomp; "
            f"no capabilities; uid {uid}, inside {command.INNER_UID}; workspace {limits.disk_bytes} bytes of tmpfs; "
            f"memory {limits.memory_bytes} bytes by RLIMIT_AS and PSS of the tree every 50 ms; cpu by RLIMIT_CPU and "
            f"sum of the tree; {limits.num_processes} processes by RLIMIT_NPROC; python {python}"
        )

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
    ) -> ExecResult:
        """Run Python source in a process forked from the server: as a script, or `function(arguments)` of a module.

        With `function`, stdout holds exactly the text returned; what the code prints is in stderr.
        """
        if not function:
            return await self._call({"op": "run", "source": source}, "python", timeout_seconds)
        message = {"op": "call", "source": source, "function": function, "arguments": dict(arguments or {})}
        return await self._call(message, f"{function}()", timeout_seconds)

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

    async def files(self) -> dict[str, bytes]:
        """End the process tree, then read the workspace."""
        if self._snapshot is None:
            await self._end("files taken")
            if self._channel.workspace_fd < 0:
                return {}
            limit = self.contract.limits.disk_bytes
            self._snapshot = await asyncio.to_thread(read_folder, self._channel.workspace_fd, limit)
            self._channel.release()
            self.log.add(f"files: {len(self._snapshot.files)} of {self._snapshot.num_bytes} bytes")
            for refused in self._snapshot.refused:
                self.log.add(f"file refused: {refused}")
        return self._snapshot.files

    async def close(self) -> None:
        """End everything. Safe to repeat."""
        await self._end("closed")
        self._channel.release()

    async def _end(self, reason: str) -> None:
        if self._state != "ended":
            self._state = "ended"
            self._ended_because = reason
            self.log.add(f"end: {reason}")
        await self._channel.kill()

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
            try:
                reply = await self._channel.request(message, timeout=timeout + GRACE_SECONDS, output_limit=output_limit)
            except TimeoutError:
                await self._end("no answer in time")
                reply = Reply(-9, b"", b"", timeout + GRACE_SECONDS, timed_out=True, truncated=False, limit_hit="")
            except ChannelError as error:
                await self._end(str(error))
                raise self._broken(str(error)) from error
            except BaseException:
                await self._end("call interrupted")
                raise
        self._note(label, reply)
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


@lru_cache(maxsize=4)
def bwrap_version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
