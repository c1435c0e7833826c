"""JSON schemas for constrained output: refused with their place where they are none, or could not be held to."""

import json
import re
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

MAX_DEPTH = 64  # schemas within schemas: compiling takes minutes beyond
_ONE = frozenset({"additionalProperties", "items", "propertyNames", "unevaluatedItems", "unevaluatedProperties"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "patternProperties", "properties"})
# xgrammar 0.2 takes these and does not hold to them; SGLang refuses them too.
_UNENFORCED = frozenset(
    {
        "contains", "minContains", "maxContains", "uniqueItems", "multipleOf", "not", "if", "then", "else",
        "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
_FORMATS = frozenset(
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer", "relative-json-pointer",
        "time", "uri", "uri-reference", "uri-template", "uuid",
    }
)  # fmt: skip
_OF_TYPES = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format"}
)  # xgrammar reads them beside `type` only
_RULES = _OF_TYPES | {
    "type", "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
    "maxProperties", "unevaluatedProperties", "items", "prefixItems", "minItems", "maxItems", "unevaluatedItems",
}  # fmt: skip
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")  # of a schema with one of these it reads nothing else
_FREE_NAMES = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
_LITERAL = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)  # of a regex: escapes and classes


class JsonSchemaError(ValueError):
    """`pointer` is the place in the schema, as a JSON pointer from #."""

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"at {pointer}: {problem}")
        self.pointer, self.problem = pointer, problem


def read_json_schema(text: str) -> Any:
    """The schema of a JSON text, checked. Raises JsonSchemaError."""
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise JsonSchemaError("#", f"not JSON: {error}") from error
    except RecursionError as error:
        raise JsonSchemaError("#", f"nested more than {MAX_DEPTH} schemas deep") from error
    check_json_schema(schema)
    return schema


def check_json_schema(schema: Any) -> None:
    """Raises JsonSchemaError for what is no schema, and for what xgrammar would silently not hold to."""
    for part, path in _parts(schema):
        _check_part(part, path)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise JsonSchemaError(_pointer(tuple(error.absolute_path)), error.message) from error
    except RecursionError as error:
        raise JsonSchemaError("#", f"nested more than {MAX_DEPTH} schemas deep") from error
    for part, path in _parts(schema):
        problem = _not_held_to({"type": "string", **part} if _is_of_names(path) else part)
        if problem:
            raise JsonSchemaError(_pointer(path), f"{problem} cannot be held to while sampling")


def check_structural_tag(text: str) -> None:
    """The schemas within a structural tag. Raises JsonSchemaError with the place in the tag."""
    try:
        waiting: list[tuple[Any, tuple[Any, ...]]] = [(json.loads(text), ())]
    except (json.JSONDecodeError, RecursionError) as error:
        raise JsonSchemaError("#", f"not JSON: {error}") from error
    while waiting:
        part, path = waiting.pop()
        items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for key, value in items:
            if key in ("json_schema", "schema") and isinstance(value, dict):
                _check_within(value, (*path, key))
            else:
                waiting.append((value, (*path, key)))


def _check_within(schema: dict[str, Any], path: tuple[Any, ...]) -> None:
    try:
        check_json_schema(schema)
    except JsonSchemaError as error:
        raise JsonSchemaError(_pointer(path) + error.pointer[1:], error.problem) from error


def _parts(schema: Any) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Every object that is a schema, with its path. Raises JsonSchemaError where they are nested too deeply."""
    waiting: list[tuple[Any, tuple[Any, ...], int]] = [(schema, (), 0)]
    while waiting:
        part, path, depth = waiting.pop()
        if not isinstance(part, dict):
            continue
        if depth > MAX_DEPTH:
            raise JsonSchemaError(_pointer(path), f"nested more than {MAX_DEPTH} schemas deep")
        yield part, path
        waiting += [(child, (*path, *steps), depth + 1) for steps, child in _children(part)]


def _children(part: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for key, value in part.items():
        if key in _ONE:
            yield (key,), value
        elif key in _LISTS and isinstance(value, list):
            yield from (((key, index), child) for index, child in enumerate(value))
        elif key in _MAPS and isinstance(value, dict):
            yield from (((key, name), child) for name, child in value.items())


def _check_part(part: dict[str, Any], path: tuple[Any, ...]) -> None:
    unenforced = sorted(_UNENFORCED & part.keys())
    if unenforced:
        raise JsonSchemaError(_pointer(path), f"{', '.join(unenforced)} cannot be held to while sampling")
    kinds = part.get("type", "string")
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return
    if isinstance(part.get("format"), str) and part["format"] not in _FORMATS:
        raise JsonSchemaError(_pointer((*path, "format")), f"string format {part['format']!r} is not known")
    rules: list[str] = [name for name in ("format", "pattern") if name in part]
    rules += ["minLength/maxLength"] if part.keys() & {"minLength", "maxLength"} else []
    if len(rules) > 1:
        raise JsonSchemaError(_pointer(path), f"{' and '.join(rules)} cannot be held to together")


def _not_held_to(part: dict[str, Any]) -> str:
    """What of a valid schema xgrammar would pass over; empty when nothing."""
    for name in _ALONE:
        beside = sorted(part.keys() & (_RULES | set(_ALONE)) - {name})
        if name in part and beside and not (beside == ["type"] and _are_of_type(part, name)):
            return f"{', '.join(beside)} beside {name}"
    if len(part.get("allOf", ())) > 1:
        return "more than one schema in allOf"
    reference = part.get("$ref", "#")
    if reference != "#" and not reference.startswith("#/"):
        return f"$ref {reference!r}, which does not begin with #/,"
    untyped = sorted(part.keys() & _OF_TYPES) if "type" not in part else []
    if untyped:
        return f"{', '.join(untyped)} without a type"
    if re.search(r"\(\?<?[=!]", _LITERAL.sub("", part.get("pattern", ""))):
        return "looking ahead or behind in a pattern"
    return _not_held_to_of_object(part)


def _is_of_names(path: tuple[Any, ...]) -> bool:
    return path[-1:] == ("propertyNames",) and not _MAPS.intersection(path[-2:-1])


def _not_held_to_of_object(part: dict[str, Any]) -> str:
    unknown = sorted(set(part.get("required", ())) - part.get("properties", {}).keys())
    if unknown:
        return f"required {', '.join(unknown)}, of which properties says nothing,"
    if len(part.get("patternProperties", ())) + ("properties" in part) > 1 and "patternProperties" in part:
        return "patternProperties beside properties, or more than one of them,"
    free = [name for name in _FREE_NAMES if part.get(name, False) is not False]
    if part.get("minProperties", 0) > 1 and free:
        return f"minProperties beside {free[0]}, where a name may come twice,"
    return ""


def _are_of_type(part: dict[str, Any], name: str) -> bool:
    values = part[name] if name == "enum" else [part[name]]
    of_type = Draft202012Validator({"type": part["type"]})
    return name in ("const", "enum") and all(of_type.is_valid(value) for value in values)


def _pointer(path: tuple[Any, ...]) -> str:
    return "/".join(["#", *(str(step).replace("~", "~0").replace("/", "~1") for step in path)])
