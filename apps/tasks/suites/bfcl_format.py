"""How a Berkeley function-calling row becomes text, schema and reference: signatures, JSON schema, gold call. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_workers.contracts.tasks import ToolSpec

_JSON_TYPES = {
    "string": "string",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
    "object": "object",
}
_PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "float": "float",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "tuple": "tuple",
    "dict": "dict",
    "object": "dict",
}
OMITTED = ""  # among the accepted values of a parameter: it may be left out


def signature(function: Mapping[str, Any]) -> str:
    """`f(a: int, b: str = "x"): what it does` of a function description; required parameters first."""
    parameters = function["parameters"]
    properties: Mapping[str, Mapping[str, Any]] = parameters.get("properties", {})
    required = [name for name in parameters.get("required", []) if name in properties]
    optional = [name for name in properties if name not in required]
    parts = [f"{name}: {_python_type(properties[name])}" for name in required]
    parts += [f"{name}: {_python_type(properties[name])} = {properties[name].get('default')!r}" for name in optional]
    return f"{function['name']}({', '.join(parts)}): {_first_sentence(function.get('description', ''))}"


def tool_spec(function: Mapping[str, Any]) -> ToolSpec:
    """The function as a tool whose arguments are checked against a JSON schema."""
    return ToolSpec(
        name=function["name"],
        description=function.get("description", ""),
        parameters={**json_schema(function["parameters"]), "additionalProperties": False},
    )


def json_schema(parameter: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter in JSON schema's own words."""
    schema: dict[str, Any] = {}
    kind = _JSON_TYPES.get(str(parameter.get("type", "")))
    if kind:
        schema["type"] = kind
    if isinstance(parameter.get("enum"), list):
        schema["enum"] = parameter["enum"]
    if kind == "array" and isinstance(parameter.get("items"), Mapping):
        schema["items"] = json_schema(parameter["items"])
    if kind == "object" and isinstance(parameter.get("properties"), Mapping):
        schema["properties"] = {name: json_schema(value) for name, value in parameter["properties"].items()}
        schema["required"] = [name for name in parameter.get("required", []) if name in parameter["properties"]]
    return schema


def gold_call(name: str, accepted: Mapping[str, Sequence[Any]]) -> str:
    """The call that uses the first accepted value of every parameter that may not be left out."""
    arguments = {key: _first(values) for key, values in accepted.items() if values and OMITTED not in values}
    return f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _first(values: Sequence[Any]) -> Any:
    value = values[0]
    if isinstance(value, dict):
        return {key: _first(inner) for key, inner in value.items() if inner and OMITTED not in inner}
    if isinstance(value, list):
        return [_first([item]) if isinstance(item, dict) else item for item in value]
    return value


def _literal(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, list):
        return f"[{', '.join(_literal(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(inner)}" for key, inner in value.items()) + "}"
    return repr(value)


def _python_type(parameter: Mapping[str, Any]) -> str:
    if isinstance(parameter.get("enum"), list):
        return "|".join(_literal(value) for value in parameter["enum"])
    kind = _PYTHON_TYPES.get(str(parameter.get("type", "")), "any")
    items = parameter.get("items")
    if kind in ("list", "tuple") and isinstance(items, Mapping) and items.get("type") in _PYTHON_TYPES:
        return f"{kind}[{_PYTHON_TYPES[items['type']]}]"
    return kind


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]
