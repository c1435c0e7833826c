"""Everything that is wrong with a RunSpec at once; the contract's own parser stops at the first field."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gpu_workers.contracts.runspec import RunSpec
from ratchet.problems import Problem


def check_spec(spec: Any, more: Callable[[], list[dict[str, str]]] = list) -> None:
    """Raise Problem 422 with the path of every field that is unknown, missing, or of a value that it cannot have.

    `more`: what else there is to say of a spec that is refused.
    """
    errors = _errors(spec, RunSpec)
    if errors:
        first = errors[0]
        named = {error["path"] for error in errors}
        errors += [error for error in more() if error["path"] not in named]
        raise Problem("invalid_run_spec", 422, f"{first['path']}: {first['message']}", errors)


def _errors(data: Any, kind: type[msgspec.Struct], path: str = "") -> list[dict[str, str]]:
    if not isinstance(data, Mapping):
        return [{"path": path or "spec", "message": "must be an object"}]
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    known = ", ".join(fields)
    errors = [
        {"path": _join(path, str(name)), "message": f"is unknown; known: {known}"}
        for name in data
        if name not in fields
    ]
    for name, field in fields.items():
        where = _join(path, name)
        if name not in data:
            errors += [{"path": where, "message": "is missing"}] if field.required else []
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            errors += _errors(data[name], field.type, where)
        else:
            errors += _value_errors(data[name], field.type, where)
    return errors


def _value_errors(value: Any, kind: Any, path: str) -> list[dict[str, str]]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [{"path": path, "message": str(error).partition(" - at `$")[0]}]
    return []


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
