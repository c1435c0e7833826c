"""Tools and MCP servers as a header or a line declares them, made into those of a task; their code is only read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from apps.tasks.suites.errors import SuiteProblem
from gpu_workers.contracts.builtin_tools import SCHEMAS
from gpu_workers.contracts.tasks import ToolServer, ToolSpec
from gpu_workers.contracts.tool_source import TOOL_NAME, ToolSourceError, parse_source, specs_of


class ToolEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A declared tool. `file`: one sent beside the suite, in place of `source`. Without a name: all tools in it."""

    name: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    source: str = ""
    file: str = ""
    server: str = ""


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A declared MCP server; `file` as for tools."""

    name: str
    source: str = ""
    file: str = ""
    command: list[str] = []
    environment: dict[str, str] = {}
    protocol: str = ""
    start_timeout_seconds: float = 20.0


@dataclass
class ToolReader:
    """Reads declarations and collects what is wrong with them. `files`: texts sent beside the suite, by name."""

    files: Mapping[str, str]
    servers: tuple[str, ...] = ()
    problems: list[SuiteProblem] = field(default_factory=list)

    def read(self, line: int, where: str, entries: Sequence[ToolEntry]) -> list[ToolSpec]:
        """Tools of a header (line 0) or a line; a name may be used once."""
        specs: list[ToolSpec] = []
        for index, entry in enumerate(entries):
            for spec in self._specs(line, f"{where}[{index}]", entry):
                if any(spec.name == other.name for other in specs):
                    self._refuse(line, f"{where}[{index}].name", f"a tool {spec.name!r} is there already")
                specs.append(spec)
        return specs

    def read_servers(self, entries: Sequence[ServerEntry]) -> list[ToolServer]:
        """MCP servers of the header; their names are then known to `read`."""
        servers = []
        for index, entry in enumerate(entries):
            where = f"tool_servers[{index}]"
            source = self._text(0, where, entry.source, entry.file)
            if not TOOL_NAME.match(entry.name) or "." in entry.name or entry.name in self.servers:
                self._refuse(0, f"{where}.name", f"{entry.name!r} must be letters, digits and _, and no other server's")
            if bool(source) == bool(entry.command):
                self._refuse(0, f"{where}.command", "a server needs a command, or a source (or file), and not both")
            if source:
                try:
                    parse_source(source)
                except ToolSourceError as error:
                    self._refuse(0, f"{where}.source", str(error))
            self.servers = (*self.servers, entry.name)
            servers.append(
                ToolServer(
                    name=entry.name,
                    source=source,
                    command=entry.command,
                    environment=entry.environment,
                    protocol=entry.protocol,
                    start_timeout_seconds=entry.start_timeout_seconds,
                )
            )
        return servers

    def _specs(self, line: int, where: str, entry: ToolEntry) -> list[ToolSpec]:
        if entry.name and not TOOL_NAME.match(entry.name):
            self._refuse(line, f"{where}.name", f"{entry.name!r} is not a function name")
            return []
        if entry.parameters is not None:
            self._check_schema(line, f"{where}.parameters", entry.parameters)
        source = self._text(line, where, entry.source, entry.file)
        if source:
            return self._of_source(line, where, entry, source)
        if entry.server and entry.server not in self.servers:
            self._refuse(line, f"{where}.server", f"the header declares no server {entry.server!r} in tool_servers")
        elif entry.server and not entry.name.startswith(f"{entry.server}."):
            self._refuse(line, f"{where}.name", f"a tool of server {entry.server} is named {entry.server}.<tool>")
        elif not entry.server and entry.name not in SCHEMAS:
            known = ", ".join(SCHEMAS)
            message = f"is needed: {entry.name!r} is not one of the built-in tools {known}"
            self._refuse(line, f"{where}.source", message)
        spec = ToolSpec(name=entry.name, description=entry.description, server=entry.server)
        parameters = SCHEMAS.get(entry.name) if entry.parameters is None else entry.parameters
        return [spec if parameters is None else msgspec.structs.replace(spec, parameters=parameters)]

    def _of_source(self, line: int, where: str, entry: ToolEntry, source: str) -> list[ToolSpec]:
        try:
            specs = specs_of(source, entry.name)
        except ToolSourceError as error:
            self._refuse(line, f"{where}.source", str(error))
            return []
        for spec in specs:
            self._check_schema(line, f"{where}.source", spec.parameters)
        if specs[0].name == "":
            self._refuse(line, f"{where}.name", "is needed: the source is written as call(arguments)")
        if not entry.name:
            return specs
        found = [spec for spec in specs if spec.name == entry.name]
        if not found:
            names = ", ".join(spec.name for spec in specs)
            self._refuse(line, f"{where}.name", f"the source defines no tool {entry.name!r}, only {names}")
            return []
        spec = found[0]
        return [
            msgspec.structs.replace(
                spec,
                description=entry.description or spec.description,
                parameters=spec.parameters if entry.parameters is None else entry.parameters,
            )
        ]

    def _text(self, line: int, where: str, source: str, file: str) -> str:
        if not file:
            return source
        if source or file not in self.files:
            message = "give source or file, not both" if source else f"no file {file!r} was sent as tool_files"
            self._refuse(line, f"{where}.file", message)
        return self.files.get(file, source)

    def _check_schema(self, line: int, where: str, schema: Mapping[str, Any]) -> None:
        try:
            validator_for(schema, default=Draft202012Validator).check_schema(schema)
        except (SchemaError, RecursionError) as error:
            self._refuse(line, where, f"is not a JSON schema: {getattr(error, 'message', 'nested too deeply')}")

    def _refuse(self, line: int, where: str, message: str) -> None:
        self.problems.append(SuiteProblem(line, where, message))
