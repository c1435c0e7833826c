"""The tools of an episode bound to its sandbox: schema check, execution inside, one record a call."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gpu_workers.contracts.builtin_tools import ALL_LINES, FIRST_LINE
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import ToolCallRecord
from gpu_workers.contracts.seams import ExecResult, Sandbox, WorkerError
from gpu_workers.contracts.tasks import ToolServer, ToolSpec
from gpu_workers.sandboxes.bounds import workspace_path
from gpu_workers.tools.checking import find_problem
from gpu_workers.tools.declared import DeclaredTool, ToolError, load_tools
from gpu_workers.tools.mcp import McpSession
from gpu_workers.tools.records import bounded_arguments, finished, refused
from gpu_workers.tools.shipping import sdk, shipped, split_head

__all__ = ["ToolBox", "ToolError"]


class ToolBox:
    """Tools bound to one sandbox. Their code and their state are in no file of it: the policy cannot change them."""

    def __init__(
        self,
        sandbox: Sandbox,
        tools: Sequence[ToolSpec],
        output_bytes: int = 64 * 2**10,
        *,
        servers: Sequence[ToolServer] = (),
    ) -> None:
        self.sandbox = sandbox
        self.output_bytes = output_bytes
        self.tools = load_tools(tools, servers)
        self._states: dict[str, dict[str, Any]] = {}
        self._servers = {server.name: McpSession(sandbox, server, tools) for server in servers}

    async def set_up(self) -> None:
        """Once, after the sandbox has started and before the policy can change anything: setups and MCP servers.

        Raises WorkerError(ENVIRONMENT) where one fails.
        """
        for tool in self.tools.values():
            if tool.has_setup:
                done = await self._run_source(tool, {}, "setup")
                record = self._take_state(tool, done)
                if not record.ok:
                    message = f"setup of tool {tool.spec.name!r}: {record.error}"
                    raise WorkerError(Boundary.ENVIRONMENT, message, retryable=False)
        for server in self._servers.values():
            await server.open()

    def check(self, name: str, arguments: Any) -> str:
        """Why a call is invalid; empty when it may be executed."""
        tool = self.tools.get(name)
        if tool is None:
            return f"unknown tool {name[:100]!r}; the tools are {', '.join(self.tools) or 'none'}"
        problem = find_problem(tool.validator, arguments)
        return f"{name}: {problem}" if problem else ""

    async def call(self, name: str, arguments: Any) -> ToolCallRecord:
        """Execute one call, or refuse it. Raises WorkerError only when the sandbox or an MCP server is broken."""
        if problem := self.check(name, arguments):
            return refused(name, arguments, problem)
        started = asyncio.get_running_loop().time()
        try:
            record = await self._execute(self.tools[name], arguments)
        except WorkerError as error:
            if error.boundary is not Boundary.POLICY:
                raise
            record = refused(name, arguments, str(error), invalid=False)
        record.arguments = bounded_arguments(arguments)
        record.duration_seconds = asyncio.get_running_loop().time() - started
        return record

    async def _execute(self, tool: DeclaredTool, arguments: dict[str, Any]) -> ToolCallRecord:
        name = tool.spec.name
        if tool.spec.server:
            return await self._servers[tool.spec.server].call(name, arguments)
        if tool.spec.source:
            return self._take_state(tool, await self._run_source(tool, arguments, "call"))
        if name == "shell":
            done = await self.sandbox.exec(["/bin/sh", "-c", arguments["command"]])
            return finished(name, done, _both_streams(done), keep_text=True)
        if name == "python":
            done = await self.sandbox.run_python(arguments["code"])
            return finished(name, done, _both_streams(done), keep_text=True)
        return await self._file(name, arguments)

    async def _run_source(self, tool: DeclaredTool, arguments: dict[str, Any], phase: str) -> ExecResult:
        request = {
            "source": tool.spec.source,
            "name": tool.spec.name,
            "class": tool.class_name,
            "arguments": arguments,
            "state": self._states.get(tool.spec.name, {}),
            "sdk": sdk() if tool.class_name else "",
            "phase": phase,
        }
        return await self.sandbox.run_python(shipped("call_tool.py"), function="run", arguments=request)

    def _take_state(self, tool: DeclaredTool, done: ExecResult) -> ToolCallRecord:
        """The record of a call of a source, whose new state is kept where the call came to its end."""
        head, text = split_head(done.stdout)
        record = finished(tool.spec.name, done, text)
        if record.ok and head is not None and tool.class_name:
            self._states[tool.spec.name] = head
        return record

    async def _file(self, name: str, arguments: dict[str, Any]) -> ToolCallRecord:
        request: dict[str, Any] = {"start_line": FIRST_LINE, "num_lines": ALL_LINES, "append": False}
        request |= {**arguments, "path": workspace_path(arguments["path"]), "limit": self.output_bytes // 2}
        done = await self.sandbox.run_python(shipped("files.py"), function=name, arguments=request)
        head, text = split_head(done.stdout)
        record = finished(name, done, text, problem=(head or {}).get("error", ""))
        record.truncated = record.truncated or bool((head or {}).get("truncated"))
        return record


def _both_streams(done: ExecResult) -> str:
    return done.stdout + (f"\n{done.stderr}" if done.stdout and done.stderr else done.stderr)
