"""OpenAI's `tool_choice` where it forces a call: checked, and as a constraint in the session's tool format."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.serving.errors import ApiError
from gpu_workers.serving.response_format import check_schema
from gpu_workers.sessions.constraints import call_constraint
from gpu_workers.sessions.formats import ToolFormat

ToolChoice = str | dict[str, Any] | None


class _Function(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    type: Literal["function"]
    function: _Function


def is_forced(choice: ToolChoice) -> bool:
    return choice not in (None, "auto", "none")


def check_choice(choice: ToolChoice, parameters: Mapping[str, Any]) -> None:
    """`parameters`: schemas of the tools by name, in their order. Raises ApiError 400."""
    if isinstance(choice, dict):
        name = _name(choice)
        if name not in parameters:
            raise ApiError(400, "unknown_tool", f"there is no tool {name!r} in tools", param="tool_choice")
    elif choice != "required":
        message = "tool_choice must be auto, none, required, or name a function"
        raise ApiError(400, "invalid_value", message, param="tool_choice")
    if not parameters:
        raise ApiError(400, "invalid_value", "tool_choice forces a call, but there are no tools", param="tool_choice")
    for index, schema in enumerate(parameters.values()):
        check_schema(schema or {}, f"tools.{index}.function.parameters")


def forced_call(choice: ToolChoice, form: ToolFormat, tools: Sequence[ToolSpec], *, parallel: bool) -> Constraint:
    """A checked `choice`; a named function is called once. Raises ApiError 400 where no grammar holds to the format."""
    if isinstance(choice, dict):
        tools, parallel = [tool for tool in tools if tool.name == _name(choice)], False
    constraint = call_constraint(form, tools, parallel=parallel)
    if constraint is None:
        message = f"a call in the session's format, {form}, cannot be forced: no grammar holds to it; use auto"
        raise ApiError(400, "unsupported_parameter", message, param="tool_choice")
    return constraint


def _name(choice: dict[str, Any]) -> str:
    try:
        return msgspec.convert(choice, _Named).function.name
    except msgspec.ValidationError as error:
        message = f'tool_choice must be {{"type": "function", "function": {{"name": …}}}}: {error}'
        raise ApiError(400, "invalid_value", message, param="tool_choice") from error
