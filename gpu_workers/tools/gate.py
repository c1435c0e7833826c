"""The tools' part of the gate of a task: declarations are sound, setups run, MCP servers offer what is declared."""

from gpu_workers.contracts.seams import SandboxBackend
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.tools.declared import load_tools
from gpu_workers.tools.toolbox import ToolBox


async def check_tools(task: TaskBundle, backend: SandboxBackend) -> None:
    """Raises ToolError on a declaration, WorkerError on what goes wrong in a real sandbox of the task."""
    tools = load_tools(task.tools, task.tool_servers)
    if not task.tool_servers and not any(tool.has_setup for tool in tools.values()):
        return
    sandbox = backend.create(task.contract)
    try:
        await sandbox.start()
        toolbox = ToolBox(sandbox, task.tools, task.contract.limits.output_bytes, servers=task.tool_servers)
        await toolbox.set_up()
    finally:
        await sandbox.close()
