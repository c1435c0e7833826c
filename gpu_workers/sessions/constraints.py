"""What the text of a turn is held to: an answer under a schema, or a tool call in the session's format."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.sessions.formats import ToolFormat

# Opening of a call, where its name stands, and its end; what stands between two calls; around all of them.
_WRITTEN = {
    ToolFormat.HERMES: ('<tool_call>\n{"name": %s, "arguments": ', "}\n</tool_call>", "\n", ("", "")),
    ToolFormat.JSON: ('{"name": %s, "arguments": ', "}", ", ", ("[", "]")),
    ToolFormat.LLAMA: ('{"name": %s, "parameters": ', "}", "; ", ("", "")),
    ToolFormat.MISTRAL: ('{"name": %s, "arguments": ', "}", ", ", ("[TOOL_CALLS] [", "]")),
}


def answer_constraint(schema: Any) -> Constraint:
    """An answer that is JSON of this schema."""
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))


def call_constraint(form: ToolFormat, tools: Sequence[ToolSpec], *, parallel: bool) -> Constraint | None:
    """A turn that is a call of one of the tools, or with `parallel` one call or more. None: no grammar for the format.

    Arguments follow the tools' schemas; the text is what `formats.read_calls` reads.
    """
    if form not in _WRITTEN:
        return None
    opening, end, between, (before, after) = _WRITTEN[form]
    calls: Mapping[str, Any] = {
        "type": "tags_with_separator",
        "tags": [_tag(opening % json.dumps(tool.name), _schema(tool), end) for tool in tools],
        "separator": between,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    whole = {"type": "tag", "begin": before, "content": calls, "end": after} if before else calls
    tag = {"type": "structural_tag", "format": whole}
    return Constraint(ConstraintKind.STRUCTURAL_TAG, json.dumps(tag, ensure_ascii=False))


def _tag(begin: str, schema: Mapping[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}


def _schema(tool: ToolSpec) -> Mapping[str, Any]:
    """Arguments are an object where the tool's schema leaves that open."""
    elsewhere = tool.parameters.keys() & {"$ref", "anyOf", "oneOf", "allOf", "const", "enum"}  # where it is said
    return tool.parameters if elsewhere else {"type": "object", **tool.parameters}
