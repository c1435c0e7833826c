"""The built-in environment: a task's tools on a sandbox of its own, started when the first call needs it."""

from collections.abc import Sequence
from typing import Any

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord, ToolCallRecord
from gpu_workers.contracts.seams import Sandbox, SandboxBackend, WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract, ToolSpec
from gpu_workers.sandboxes.tools import ToolBox, ToolError


class ToolEnvironment:
    """Implements contracts.seams.Environment. An episode that never calls a tool never starts a sandbox."""

    def __init__(self, backend: SandboxBackend, contract: EnvironmentContract, tools: Sequence[ToolSpec]) -> None:
        self._backend = backend
        self._contract = contract
        self._tools = list(tools)
        self._sandbox: Sandbox | None = None
        self._toolbox: ToolBox | None = None
        self._closed = False

    async def reset(self) -> None:
        """Back to the contract's files: the old sandbox goes, the next call gets a fresh one."""
        await self._drop()
        self._closed = False

    async def step(self, name: str, arguments: dict[str, Any]) -> ToolCallRecord:
        """Execute one call. Raises WorkerError when no sandbox can be had."""
        if self._closed:
            raise RuntimeError("step after close")
        toolbox = await self._ready()
        return await toolbox.call(name, arguments)

    async def state(self) -> dict[str, bytes]:
        """Files of the workspace; ends the sandbox's processes."""
        if self._sandbox is None:
            return {path: text.encode() for path, text in self._contract.files.items()}
        return await self._sandbox.files()

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        await self._drop()

    @property
    def record(self) -> SandboxRecord:
        return SandboxRecord() if self._sandbox is None else self._sandbox.record

    async def _ready(self) -> ToolBox:
        if self._toolbox is None:
            # Kept before it starts: a sandbox that fails half-way is still closed and its log kept.
            self._sandbox = self._backend.create(self._contract)
            await self._sandbox.start()
            try:
                self._toolbox = ToolBox(self._sandbox, self._tools, self._contract.limits.output_bytes)
            except ToolError as error:
                raise WorkerError(Boundary.ENVIRONMENT, str(error), retryable=False) from error
        return self._toolbox

    async def _drop(self) -> None:
        sandbox, self._toolbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()
            if not self._closed:
                self._sandbox = None
