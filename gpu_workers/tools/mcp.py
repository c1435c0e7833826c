"""One MCP server of an episode: started with the first call of one of its tools, spoken to from inside the sandbox."""

import re
from collections.abc import Sequence
from typing import Any

from gpu_workers.contracts.enums import Boundary, ToolOutcome
from gpu_workers.contracts.groups import ToolCallRecord
from gpu_workers.contracts.seams import ExecResult, Sandbox, WorkerError
from gpu_workers.contracts.tasks import ToolServer, ToolSpec
from gpu_workers.tools.declared import ToolError
from gpu_workers.tools.records import finished
from gpu_workers.tools.shipping import shipped, split_head


class McpSession:
    """A server and what was settled with it. It runs only while one of its tools is called."""

    def __init__(self, sandbox: Sandbox, server: ToolServer, tools: Sequence[ToolSpec]) -> None:
        self.sandbox = sandbox
        self.server = server
        self._declared = {tool.name.partition(".")[2]: tool.parameters for tool in tools if tool.server == server.name}
        self._names: dict[str, str] = {}  # of the tools as declared -> as the server calls them
        self._protocol = server.protocol
        self._next_id = 1
        self._unanswered = 0  # id of a request that ran out of time
        self._opened = False

    async def list_tools(self) -> tuple[str, list[dict[str, Any]]]:
        """Start the server; the revision of the protocol and its tools as it describes them. Raises WorkerError."""
        await self._start()
        _, head, _ = await self._ask({"operation": "list"}, self.server.start_timeout_seconds)
        return self._protocol, head["tools"]

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolCallRecord:
        """Call one tool. Raises WorkerError(ENVIRONMENT) where the server cannot start or is not as declared."""
        await self.open()
        request = {"operation": "call", "name": self._names[name.partition(".")[2]], "arguments": arguments}
        first_id = self._next_id
        done, head, text = await self._exchange(request, None)
        record = finished(name, done, text, problem=_problem(head, text))
        if record.outcome is not ToolOutcome.RAN or head is None:
            self._unanswered, self._next_id = first_id, first_id + 1
        else:
            self._unanswered = 0
        return record

    async def _start(self) -> None:
        server = self.server
        await self.sandbox.serve(server.name, argv=server.command, source=server.source, environment=server.environment)

    async def open(self) -> None:
        """Start the server unless it runs, and compare its tools with the declared ones. Raises WorkerError."""
        if self._opened:
            return
        await self._start()
        request = {"operation": "open", "declared": self._declared}
        _, head, _ = await self._ask(request, self.server.start_timeout_seconds)
        if head["problem"]:
            raise self._broken(f"{head['problem']}; list its tools again")
        self._names = head["names"]
        self._opened = True

    async def _ask(self, request: dict[str, Any], timeout: float) -> tuple[ExecResult, dict[str, Any], str]:
        done, head, text = await self._exchange(request, timeout)
        record = finished(self.server.name, done, text, problem=(head or {}).get("error", ""))
        if not record.ok or head is None:
            said = f"; it wrote: {done.stderr.strip()[-300:]}" if done.stderr.strip() else ""
            raise self._broken((record.error or "no answer") + said)
        return done, head, text

    async def _exchange(
        self, request: dict[str, Any], timeout: float | None
    ) -> tuple[ExecResult, dict[str, Any] | None, str]:
        request |= {"next_id": self._next_id, "protocol": self._protocol, "unanswered": self._unanswered}
        done = await self.sandbox.run_python(
            shipped("mcp_client.py"),
            function="run",
            arguments=request,
            timeout_seconds=timeout,
            service=self.server.name,
        )
        head, text = split_head(done.stdout)
        if head is not None:
            self._next_id = head.get("next_id", self._next_id)
            self._protocol = head.get("protocol", self._protocol)
        return done, head, text

    def _broken(self, problem: str) -> WorkerError:
        return WorkerError(Boundary.ENVIRONMENT, f"MCP server {self.server.name!r}: {problem}", retryable=False)


def tool_specs(server: ToolServer, listed: Sequence[dict[str, Any]]) -> list[ToolSpec]:
    """The tools that a server lists, as a task declares them. Raises ToolError where two would have one name."""
    specs: list[ToolSpec] = []
    for tool in listed:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", tool["name"])
        name = f"{server.name}.{plain}"
        if any(spec.name == name for spec in specs):
            raise ToolError(f"MCP server {server.name!r} has two tools that would be called {name}")
        description = tool.get("description")
        specs.append(
            ToolSpec(
                name=name,
                description=description if isinstance(description, str) else "",
                parameters=tool.get("inputSchema") or {},
                server=server.name,
            )
        )
    return specs


def _problem(head: dict[str, Any] | None, text: str) -> str:
    if head is None:
        return ""
    if "error" in head:
        return str(head["error"])
    return (text or "the tool failed") if head.get("is_error") else ""
