"""Claim: what a tool adds to a bare call in the sandbox is small: a function or file tool at most 4 ms, MCP 8 ms.

All sides in one run, interleaved, each on a sandbox that is already running: a bare Python function, a tool written as
a function, one written as a class with state, `read_file`, a program, and a tool of an MCP server (standard library,
by hand) that lives in the sandbox; then program and function again beside that frozen server.
Prints one JSON object. Run: `python benchmarks/tool_calls.py [--rounds N]`.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_workers.contracts.environment import EnvironmentContract
from gpu_workers.contracts.tasks import ToolServer, ToolSpec
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.tools.mcp import McpSession, tool_specs
from gpu_workers.tools.toolbox import ToolBox
from tests.unit.gpu_workers.tools.mcp_servers import SERVER

AIM_FUNCTION, AIM_MCP = 4.0, 8.0  # milliseconds over a bare call
FUNCTION = "def call(arguments):\n    return 'x'\n"
CLASS = """
from gpu_workers.tools import Tool

class Count(Tool):
    def call(self) -> str:
        self.state["n"] = self.state.get("n", 0) + 1
        return str(self.state["n"])
"""
TOOLS = [ToolSpec(name="function", source=FUNCTION), ToolSpec(name="count", source=CLASS), ToolSpec(name="read_file")]


async def timed(times: dict[str, list[float]], name: str, call: Awaitable[Any]) -> None:
    started = time.perf_counter()
    await call
    times.setdefault(name, []).append(1000 * (time.perf_counter() - started))


async def measure(rounds: int) -> dict[str, list[float]]:
    backend = BubblewrapBackend()
    contract = EnvironmentContract(files={"a.txt": "x\n"})
    server = ToolServer(name="notes", source=SERVER, protocol="2025-11-25")
    alone, beside, listing = (backend.create(contract) for _ in range(3))
    times: dict[str, list[float]] = {}
    try:
        for sandbox in (alone, beside, listing):
            await sandbox.start()
        _, listed = await McpSession(listing, server, []).list_tools()
        box = ToolBox(alone, TOOLS)
        with_server = ToolBox(beside, [*TOOLS, *tool_specs(server, listed)], servers=[server])
        await with_server.open_servers()
        await asyncio.sleep(0.3)  # both have loaded what they load when idle
        for _ in range(rounds):
            await timed(times, "bare function", alone.run_python(FUNCTION, function="call", arguments={}))
            await timed(times, "function tool", box.call("function", {}))
            await timed(times, "class tool", box.call("count", {}))
            await timed(times, "read_file", box.call("read_file", {"path": "a.txt"}))
            await timed(times, "program", alone.exec(["true"]))
            await timed(times, "MCP tool", with_server.call("notes.recall_all", {}))
            await timed(times, "function tool beside a server", with_server.call("function", {}))
            await timed(times, "program beside a server", beside.exec(["true"]))
    finally:
        for sandbox in (alone, beside, listing):
            await sandbox.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    times = asyncio.run(measure(parser.parse_args().rounds))
    median = {name: statistics.median(values) for name, values in times.items()}
    bare = median["bare function"]
    result = {
        "median_ms": {name: round(value, 2) for name, value in median.items()},
        "p99_ms": {name: round(sorted(values)[int(0.99 * len(values))], 2) for name, values in times.items()},
        "over_bare_ms": {name: round(median[name] - bare, 2) for name in ("function tool", "read_file", "MCP tool")},
        "aim_met": max(median["function tool"], median["read_file"]) - bare <= AIM_FUNCTION
        and median["MCP tool"] - bare <= AIM_MCP,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
