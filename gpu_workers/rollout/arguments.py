"""Checks a parsed call against a task's tools before anything is started for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from gpu_workers.contracts.tasks import ToolSpec
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
    try:
        arguments = bind_arguments(call, tool.parameters)
    except CallSyntaxError as error:
        return CheckedCall(call.name, error=str(error))
    schema = {"additionalProperties": False, **tool.parameters, "type": "object"}
    failure = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(arguments))
    if failure is None:
        return CheckedCall(call.name, arguments)
    where = ".".join(str(part) for part in failure.absolute_path)
    message = f"{where}: {failure.message}" if where else failure.message
    return CheckedCall(call.name, arguments, error=message[:_MAX_MESSAGE])
