"""A task's declarations of tools, checked and made ready to be called."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonschema.protocols import Validator

from gpu_workers.contracts.builtin_tools import SCHEMAS
from gpu_workers.contracts.tasks import ToolServer, ToolSpec
from gpu_workers.contracts.tool_source import TOOL_NAME, ToolClass, ToolSourceError, read_tools
from gpu_workers.tools.checking import SchemaProblem, make_validator


class ToolError(ValueError):
    """A tool that a task may not declare; the message names it and says why."""


@dataclass(frozen=True)
class DeclaredTool:
    """A declared tool. `class_name` is empty unless its source is written as a class."""

    spec: ToolSpec
    parameters: Mapping[str, Any]
    validator: Validator
    class_name: str = ""
    has_setup: bool = False


def load_tool(spec: ToolSpec) -> DeclaredTool:
    """Check one declaration. Raises ToolError."""
    if not TOOL_NAME.match(spec.name):
        raise ToolError(f"tool {spec.name!r}: not a function name")
    if spec.source and spec.server:
        raise ToolError(f"tool {spec.name!r} has both a source and a server")
    if spec.server:
        if not spec.name.startswith(f"{spec.server}."):
            raise ToolError(f"tool {spec.name!r} of server {spec.server!r} must be named {spec.server}.<tool>")
    elif not spec.source and spec.name not in SCHEMAS:
        known = ", ".join(SCHEMAS)
        raise ToolError(f"tool {spec.name!r} has no source and is not built in; built in are {known}")
    found, parameters = _class_of(spec), parameters_of(spec)
    try:
        validator = make_validator(parameters)
    except SchemaProblem as error:
        raise ToolError(f"tool {spec.name!r}: {error}") from error
    if found is None:
        return DeclaredTool(spec, parameters, validator)
    return DeclaredTool(spec, parameters, validator, found.class_name, found.has_setup)


def parameters_of(spec: ToolSpec) -> Mapping[str, Any]:
    """The schema that holds for a tool. Raises ToolError where its source cannot be read."""
    if not spec.parameters.get("properties"):
        if spec.source:
            found = _class_of(spec)
            return spec.parameters if found is None else found.parameters
        if not spec.server and spec.name in SCHEMAS:
            return SCHEMAS[spec.name]
    return spec.parameters


def _class_of(spec: ToolSpec) -> ToolClass | None:
    """The class of a tool; None where its source is written as `def call(arguments)`, or it has none."""
    if not spec.source:
        return None
    try:
        tools = _tools_of(spec.source)
    except ToolSourceError as error:
        raise ToolError(f"tool {spec.name!r}: source, {error}") from error
    found = next((tool for tool in tools if tool.name == spec.name), None)
    if tools and found is None:
        names = ", ".join(tool.name for tool in tools)
        raise ToolError(f"tool {spec.name!r}: its source defines only {names}")
    return found


_tools_of = lru_cache(maxsize=256)(read_tools)


def load_tools(specs: Sequence[ToolSpec], servers: Sequence[ToolServer] = ()) -> dict[str, DeclaredTool]:
    """Check all declarations of a task; by name. Raises ToolError."""
    names = [server.name for server in servers]
    for server in servers:
        check_server(server)
        if names.count(server.name) > 1:
            raise ToolError(f"MCP server {server.name!r} is declared twice")
    tools: dict[str, DeclaredTool] = {}
    for spec in specs:
        if spec.name in tools:
            raise ToolError(f"tool {spec.name!r} is declared twice")
        if spec.server and spec.server not in names:
            raise ToolError(f"tool {spec.name!r}: the task declares no MCP server {spec.server!r}")
        tools[spec.name] = load_tool(spec)
    for name in names:
        if not any(spec.server == name for spec in specs):
            raise ToolError(
                f"MCP server {name!r}: none of its tools is declared; list them with `python -m gpu_workers.tools mcp`"
            )
    return tools


def check_server(server: ToolServer) -> None:
    """Raises ToolError on a server that cannot be started."""
    where = f"MCP server {server.name!r}"
    if not TOOL_NAME.match(server.name) or "." in server.name:
        raise ToolError(f"{where}: the name must be letters, digits and _")
    if bool(server.source) == bool(server.command):
        raise ToolError(f"{where}: needs either a source or a command")
    if not 0 < server.start_timeout_seconds <= 300:
        raise ToolError(f"{where}: start_timeout_seconds must be above 0 and at most 300")
    texts = [*server.command, *server.environment, *server.environment.values()]
    if any("\0" in text for text in texts) or any("=" in name or not name for name in server.environment):
        raise ToolError(f"{where}: its command or environment holds what no program can be given")
    if server.source:
        try:
            compile(server.source, f"<{server.name}>", "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ToolError(f"{where}: source, line {error.lineno}: does not compile: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise ToolError(f"{where}: source does not compile: {error or type(error).__name__}") from error
