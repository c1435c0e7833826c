"""Checks a parsed call against a task's tools before anything is started for it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.tools.checking import SchemaProblem, cached_validator, find_problem
from gpu_workers.tools.declared import ToolError, parameters_of
from gpu_workers.verifiers.calls import CallSyntaxError, ParsedCall, bind_arguments


@dataclass(frozen=True)
class CheckedCall:
    """Arguments by name; `error` is empty exactly when the tool may be called with them."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def check_call(call: ParsedCall, tools: Sequence[ToolSpec]) -> CheckedCall:
    """Bind positional arguments and validate against the tool's JSON schema."""
    spec = next((tool for tool in tools if tool.name == call.name), None)
    if spec is None:
        known = ", ".join(tool.name for tool in tools) or "none"
        return CheckedCall(call.name, error=f"unknown tool {call.name[:100]!r}; the tools are {known}")
    try:
        parameters = parameters_of(spec)
        arguments = bind_arguments(call, parameters)
        validator = cached_validator(msgspec.json.encode(parameters))
    except (CallSyntaxError, ToolError, SchemaProblem) as error:
        return CheckedCall(call.name, error=str(error))
    return CheckedCall(call.name, arguments, error=find_problem(validator, arguments))
