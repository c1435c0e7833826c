"""Checks a parsed call against a task's tools before anything is started for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry

from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.sandboxes.tools import BUILT_IN_SCHEMAS
from gpu_workers.verifiers.calls import CallSyntaxError, ParsedCall, bind_arguments

_MAX_MESSAGE = 200  # characters; the policy reads it


@dataclass(frozen=True)
class CheckedCall:
    """Arguments by name; `error` is empty exactly when the tool may be called with them."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def check_call(call: ParsedCall, tools: Sequence[ToolSpec]) -> CheckedCall:
    """Bind positional arguments and validate against the tool's JSON schema."""
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return CheckedCall(call.name, error=f"unknown tool {call.name!r}; tools: {', '.join(t.name for t in tools)}")
    parameters = tool.parameters
    if not tool.source and not parameters.get("properties"):
        parameters = BUILT_IN_SCHEMAS.get(tool.name, parameters)
    try:
        arguments = bind_arguments(call, parameters)
    except CallSyntaxError as error:
        return CheckedCall(call.name, error=str(error))
    # An empty registry: a "$ref" to some address must not make the worker fetch it.
    failure = best_match(Draft202012Validator(parameters, registry=Registry()).iter_errors(arguments))
    if failure is None:
        return CheckedCall(call.name, arguments)
    where = ".".join(str(part) for part in failure.absolute_path)
    message = f"{where}: {failure.message}" if where else failure.message
    return CheckedCall(call.name, arguments, error=message[:_MAX_MESSAGE])
