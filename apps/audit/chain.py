"""The hash chain of audit events: what is hashed, and how. Pure."""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_FIRST_FORMAT = (
    "project_id", "sequence", "at", "tag", "actor_id", "actor_name", "subject_type", "subject_id",
    "before", "after", "reason", "evidence", "previous_hash",
)  # fmt: skip
FORMAT = 2  # of new events; older ones stay as they were written
HASHED_FIELDS = {1: _FIRST_FORMAT, FORMAT: (*_FIRST_FORMAT, "origin", "format")}


def canonical(value: Any) -> Any:
    """A value as it comes back from a JSON column: string keys, no NaN, whole floats as integers."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                return str(value)
            return int(value) if value.is_integer() else value
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        case Mapping():
            return {str(key): canonical(item) for key, item in value.items()}
        case list() | tuple():
            return [canonical(item) for item in value]
        case set() | frozenset():
            return sorted((canonical(item) for item in value), key=str)
        case _:
            return str(value)


def event_hash(fields: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of every field that its format hashes, the previous hash among them."""
    content = {name: canonical(fields[name]) for name in HASHED_FIELDS.get(fields["format"], HASHED_FIELDS[FORMAT])}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
