"""Servers built with the public package `mcp`, in a real sandbox; RATCHET_MCP_PACKAGES is a folder it is installed in.

The folder must be open to other users: `pip install --target /opt/mcp mcp`, then RATCHET_MCP_PACKAGES=/opt/mcp.
"""

import os
from pathlib import Path

import pytest

from gpu_workers.contracts.environment import EnvironmentContract, Mount, MountRole
from gpu_workers.contracts.tasks import ToolServer
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.host import DataRoot, HostPolicy
from gpu_workers.tools.mcp import McpSession, tool_specs
from gpu_workers.tools.toolbox import ToolBox

FOLDER = os.environ.get("RATCHET_MCP_PACKAGES", "")
SERVER = """
import sys
sys.path.insert(0, "/opt/packages")
try:
    from mcp.server import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server

server = Server("shop")
cart: dict[str, int] = {}


@server.tool()
def add(article: str, count: int = 1) -> dict[str, int]:
    \"\"\"Puts an article into the cart.\"\"\"
    if article == "ghost":
        raise ValueError("sold out")
    cart[article] = cart.get(article, 0) + count
    return cart


server.run("stdio")
"""


@pytest.mark.skipif(not FOLDER, reason="RATCHET_MCP_PACKAGES is not set to a folder with the package mcp")
@pytest.mark.parametrize("protocol", ["", "2025-11-25"])
async def test_a_server_of_the_package_serves_an_episode(backend, protocol):
    folder = Path(FOLDER)
    roots = {"packages": DataRoot(folder.parent, frozenset({MountRole.INPUT}))}
    backend = BubblewrapBackend(host=HostPolicy(data_roots=roots))
    contract = EnvironmentContract(mounts=[Mount(source=f"packages/{folder.name}", path="/opt/packages")])
    server = ToolServer(name="shop", source=SERVER, protocol=protocol)
    listing, sandbox = backend.create(contract), backend.create(contract)
    try:
        await listing.start()
        settled, listed = await McpSession(listing, server, []).list_tools()
        specs = tool_specs(server, listed)
        assert settled >= "2025-11-25" and [spec.name for spec in specs] == ["shop.add"]
        await sandbox.start()
        box = ToolBox(sandbox, specs, servers=[server])
        results = [(await box.call("shop.add", {"article": "nut", "count": n})).result for n in (1, 4)]
        assert ['"nut": 1' in results[0], '"nut": 5' in results[1]] == [True, True]
        assert (await box.call("shop.add", {"article": 5})).invalid
        failed = await box.call("shop.add", {"article": "ghost"})
        assert not failed.ok and "add" in failed.error
        assert '"nut": 6' in (await box.call("shop.add", {"article": "nut"})).result
    finally:
        await listing.close()
        await sandbox.close()
