"""The tools of an episode: schema check, execution inside the sandbox, one record a call."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import ToolCallRecord
from gpu_workers.contracts.seams import ExecResult, Sandbox, WorkerError
from gpu_workers.contracts.tasks import ToolSpec

TOOL_FUNCTION = "call"
MAX_ERROR = 500


def _text_schema(*names: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": list(names),
        "additionalProperties": False,
    }


BUILT_IN_SCHEMAS: dict[str, dict[str, Any]] = {
    "shell": _text_schema("command"),
    "python": _text_schema("code"),
    "read_file": _text_schema("path"),
    "write_file": _text_schema("path", "content"),
}


class ToolError(ValueError):
    """A tool that a task may not declare; the message names it and says why."""


@dataclass(frozen=True)
class Tool:
    """A declared tool, ready to be called."""

    spec: ToolSpec
    parameters: Mapping[str, Any]
    validator: Draft202012Validator


def load_tool(spec: ToolSpec) -> Tool:
    """Check a declaration. Raises ToolError."""
    if not spec.source and spec.name not in BUILT_IN_SCHEMAS:
        known = ", ".join(BUILT_IN_SCHEMAS)
        raise ToolError(f"tool {spec.name!r} has no source and is not built in; built in are {known}")
    declared = spec.parameters.get("properties")
    parameters = spec.parameters if spec.source or declared else BUILT_IN_SCHEMAS[spec.name]
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ToolError(f"tool {spec.name!r}: parameters are not a JSON schema: {error.message}") from error
    if spec.source:
        try:
            compile(spec.source, f"<{spec.name}>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ToolError(f"tool {spec.name!r}: source does not compile: {error}") from error
    # An empty registry: a "$ref" to some address must not make the worker fetch it.
    return Tool(spec=spec, parameters=parameters, validator=Draft202012Validator(parameters, registry=Registry()))


class ToolBox:
    """Tools bound to one sandbox. Their code is in no file of it: the policy can neither read nor change it."""

    def __init__(self, sandbox: Sandbox, tools: Sequence[ToolSpec], output_bytes: int = 64 * 2**10) -> None:
        self.sandbox = sandbox
        self.output_bytes = output_bytes
        self.tools: dict[str, Tool] = {}
        for spec in tools:
            if spec.name in self.tools:
                raise ToolError(f"tool {spec.name!r} is declared twice")
            self.tools[spec.name] = load_tool(spec)

    def check(self, name: str, arguments: Any) -> str:
        """Why a call is invalid; empty when it may be executed."""
        tool = self.tools.get(name)
        if tool is None:
            return f"unknown tool {name!r}; the tools are {', '.join(self.tools) or 'none'}"
        if not isinstance(arguments, dict):
            return f"arguments of {name!r} must be an object"
        try:
            error = best_match(tool.validator.iter_errors(arguments))
        except Exception as failure:  # a "$ref" that leads nowhere: the library raises several unrelated types
            return f"arguments of {name!r} cannot be checked: {failure}"[:MAX_ERROR]
        if error is None:
            return ""
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        return f"invalid arguments of {name!r}{' at ' + where if where else ''}: {error.message}"[:MAX_ERROR]

    async def call(self, name: str, arguments: Any) -> ToolCallRecord:
        """Execute one call, or refuse it. Raises WorkerError(INFRASTRUCTURE) only when the sandbox itself broke."""
        shown = arguments if isinstance(arguments, dict) else {}
        if problem := self.check(name, arguments):
            return ToolCallRecord(
                name=name, arguments=shown, result=f"Error: {problem}", ok=False, invalid=True, error=problem
            )
        started = asyncio.get_running_loop().time()
        try:
            record = await self._execute(self.tools[name], arguments)
        except WorkerError as error:
            if error.boundary is not Boundary.POLICY:
                raise
            record = ToolCallRecord(name=name, result=f"Error: {error}", ok=False, error=str(error)[:MAX_ERROR])
        record.arguments = shown
        # Programs print NUL characters; no prompt, document or database takes them.
        record.result, record.error = (text.replace("\0", "\ufffd") for text in (record.result, record.error))
        record.duration_seconds = asyncio.get_running_loop().time() - started
        return record

    async def _execute(self, tool: Tool, arguments: dict[str, Any]) -> ToolCallRecord:
        name = tool.spec.name
        if tool.spec.source:
            done = await self.sandbox.run_python(tool.spec.source, function=TOOL_FUNCTION, arguments=arguments)
            return _record(name, done, done.stdout)
        if name == "shell":
            done = await self.sandbox.exec(["/bin/sh", "-c", arguments["command"]])
            return _record(name, done, _both_streams(done))
        if name == "python":
            done = await self.sandbox.run_python(arguments["code"])
            return _record(name, done, _both_streams(done))
        if name == "read_file":
            data = await self.sandbox.read(arguments["path"], self.output_bytes + 1)
            text = data[: self.output_bytes].decode(errors="replace")
            return ToolCallRecord(name=name, result=text, truncated=len(data) > self.output_bytes)
        data = arguments["content"].encode(errors="replace")
        await self.sandbox.write(arguments["path"], data)
        return ToolCallRecord(name=name, result=f"wrote {len(data)} bytes")


def _both_streams(done: ExecResult) -> str:
    return done.stdout + (f"\n{done.stderr}" if done.stdout and done.stderr else done.stderr)


def _record(name: str, done: ExecResult, text: str) -> ToolCallRecord:
    """The record of a finished process; a failure is told to the policy in the result."""
    problem = _problem(done)
    shell_like = not done.timed_out and not done.limit_hit and name in BUILT_IN_SCHEMAS
    result = text
    if problem:
        result = f"{text}\n[{problem}]" if text and shell_like else f"Error: {problem}"
    return ToolCallRecord(name=name, result=result, ok=not problem, error=problem[:MAX_ERROR], truncated=done.truncated)


def _problem(done: ExecResult) -> str:
    if done.timed_out:
        return f"timed out after {done.duration_seconds:.1f} s"
    if done.limit_hit and done.exit_code != 0:
        return f"stopped: {done.limit_hit} limit"
    if done.exit_code == 0:
        return ""
    last = done.stderr.strip().splitlines()[-1:] or [""]
    return f"exit code {done.exit_code}" + (f": {last[0]}" if last[0] else "")
