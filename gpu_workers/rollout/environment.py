"""The built-in environment: a task's tools on a sandbox of its own, started while the policy writes its first turn.

A sandbox that ends during a call was ended by the host or by the call. A fresh one is given the episode's calls again:
if it ends too, the call did it, which is an observation like any other; no policy gets out of a verdict that way.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord, ToolCallRecord
from gpu_workers.contracts.seams import Sandbox, SandboxBackend, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolServer, ToolSpec
from gpu_workers.sandboxes.background import BackgroundStart
from gpu_workers.sandboxes.decoys import PATHS, Decoys, is_decoy, with_decoys
from gpu_workers.sandboxes.watch import DecoyWatch
from gpu_workers.tools.records import ended_by_call
from gpu_workers.tools.toolbox import ToolBox, ToolError


class ToolEnvironment:
    """Implements contracts.seams.Environment.

    `warm`: the sandbox starts at the reset, in the background; without it, or without tools, when the first call needs
    it. Either way an episode that makes no call has no record of one, and no failure by one.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        contract: EnvironmentContract,
        tools: Sequence[ToolSpec],
        *,
        servers: Sequence[ToolServer] = (),
        decoys: Decoys | None = None,
        warm: bool = True,
    ) -> None:
        self._backend = backend
        self._contract = contract
        self._tools = list(tools)
        self._servers = list(servers)
        self._decoys = decoys
        self._warm = warm and bool(self._tools)
        self._starting: BackgroundStart[ToolBox] | None = None
        self._started = "at the first call"
        self._watch: DecoyWatch | None = None
        self._changed_decoys: list[str] = []
        self._removed_decoys: list[str] = []
        self._sandbox: Sandbox | None = None
        self._toolbox: ToolBox | None = None
        self._closed = False
        self._needed = False  # by a call: until then nobody learns of the sandbox
        self._made: list[tuple[str, dict[str, Any]]] = []  # calls so far
        self._ended_by_policy = ""

    async def reset(self) -> None:
        """Back to the contract's files: the old sandbox goes, the next call gets a fresh one."""
        await self._drop()
        self._closed, self._needed, self._made, self._ended_by_policy = False, False, [], ""
        self._started = "at the first call"
        if self._warm:
            self._starting = BackgroundStart(self._start)

    async def step(self, name: str, arguments: dict[str, Any]) -> ToolCallRecord:
        """Execute one call. Raises WorkerError when no sandbox can be had."""
        if self._closed:
            raise RuntimeError("step after close")
        if self._ended_by_policy:
            return ended_by_call(name, arguments, self._ended_by_policy)
        self._needed = True
        toolbox = await self._ready()
        self._made.append((name, arguments))
        try:
            call = await toolbox.call(name, arguments)
        except WorkerError as error:
            if error.boundary is not Boundary.INFRASTRUCTURE:
                raise
            opened, beside = self._take_opened()  # of the sandbox that ended
            call = await self._again()
            call.opened_decoys, call.opened_beside = self._take_opened()
            call.opened_decoys = sorted({*call.opened_decoys, *opened})
            call.opened_beside = beside if call.opened_beside is None else call.opened_beside
        else:
            call.opened_decoys, call.opened_beside = self._take_opened()
        return call

    def _take_opened(self) -> tuple[list[str], float | None]:
        return ([], None) if self._watch is None else self._watch.take()

    async def _again(self) -> ToolCallRecord:
        """Make all calls in a fresh sandbox; the record of the last. Raises WorkerError when there is no sandbox."""
        await self._drop()
        toolbox = await self._ready()
        for name, arguments in self._made:
            try:
                call = await toolbox.call(name, arguments)
            except WorkerError as error:
                if error.boundary is not Boundary.INFRASTRUCTURE:
                    raise
                self._ended_by_policy = str(error)
                return ended_by_call(*self._made[-1], self._ended_by_policy)
        return call

    async def state(self) -> dict[str, bytes]:
        """Files of the workspace; ends the sandbox's processes. What is left where the policy has ended it."""
        if self._sandbox is None or not self._needed:
            await self._drop()
            return {path: text.encode() for path, text in self._contract.files.items()}
        self._end_watch()  # what follows is our own reading
        try:
            files = await self._sandbox.files()
        except WorkerError:
            if not self._ended_by_policy:
                raise
            return {}  # they were lost with it
        if self._decoys is None:
            return files
        self._changed_decoys, self._removed_decoys = self._decoys.changed(files), self._decoys.removed(files)
        return {path: data for path, data in files.items() if not is_decoy(path)}

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        await self._drop()

    @property
    def record(self) -> SandboxRecord:
        if self._sandbox is None or not self._needed:
            return SandboxRecord()
        record = self._sandbox.record
        record.applied = record.applied | {"start": self._started}
        if self._decoys is not None:
            record.canary, record.changed_decoys = self._decoys.canary, self._changed_decoys
            record.removed_decoys = self._removed_decoys
        return record

    async def _ready(self) -> ToolBox:
        if self._toolbox is None:
            began = time.monotonic()
            starting, self._starting = self._starting, None
            if starting is None:
                self._toolbox = await self._start()
            else:
                self._toolbox = await starting.take()
                waited = time.monotonic() - began
                self._started = f"from the reset on; the first call waited {waited:.3f} s for it"
            if self._decoys is not None and self._sandbox is not None:
                self._watch = watch_decoys(self._sandbox, self._contract.files)
        return self._toolbox

    async def _start(self) -> ToolBox:
        """A fresh sandbox with the tools set up, which may be before the policy has said anything."""
        # Kept before it starts: a sandbox that fails half-way is still closed and its log kept.
        contract = self._contract if self._decoys is None else with_decoys(self._contract, self._decoys)
        self._sandbox = self._backend.create(contract)
        await self._sandbox.start()
        limit = self._contract.limits.output_bytes
        try:
            toolbox = ToolBox(self._sandbox, self._tools, limit, servers=self._servers)
        except ToolError as error:
            raise WorkerError(Boundary.ENVIRONMENT, str(error), retryable=False) from error
        await toolbox.set_up()
        return toolbox

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def _drop(self) -> None:
        self._end_watch()
        starting, self._starting = self._starting, None
        if starting is not None:
            await starting.cancel()
        sandbox, self._toolbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
            if not self._closed:
                self._sandbox = None


def watch_decoys(sandbox: Sandbox, files: Iterable[str]) -> DecoyWatch | None:
    """A watch where the backend lets the worker see the workspace; elsewhere the canary alone must tell."""
    workspace_fd = getattr(sandbox, "workspace_fd", -1)
    return DecoyWatch(workspace_fd, PATHS, files) if workspace_fd >= 0 else None
