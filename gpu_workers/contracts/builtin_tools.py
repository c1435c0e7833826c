"""The tools that a suite declares by name alone, with the JSON schemas of their arguments."""

from typing import Any

FIRST_LINE, ALL_LINES = 1, 0


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_PATH = {"type": "string", "minLength": 1, "maxLength": 1000, "description": "below /workspace"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "shell": _object(["command"], command={"type": "string", "description": "run by /bin/sh in /workspace"}),
    "python": _object(["code"], code={"type": "string", "description": "run as a script in /workspace"}),
    "read_file": _object(
        ["path"],
        path=_PATH,
        start_line={"type": "integer", "minimum": 1, "default": FIRST_LINE},
        num_lines={"type": "integer", "minimum": 0, "default": ALL_LINES, "description": "0: as many as fit"},
    ),
    "write_file": _object(
        ["path", "content"],
        path=_PATH,
        content={"type": "string"},
        append={"type": "boolean", "default": False},
    ),
}
