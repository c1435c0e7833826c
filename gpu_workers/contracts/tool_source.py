"""Reads what a tool's source declares without running it: names, descriptions, JSON schemas from annotations. Pure."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpu_workers.contracts.tasks import ToolSpec

BASE_CLASS = "Tool"
FUNCTION = "call"
MAX_SOURCE_BYTES = 256 * 2**10
TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}(\.[A-Za-z_][A-Za-z0-9_]{0,63})?\Z")
_SIMPLE: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "dict": {"type": "object"},
    "list": {"type": "array"},
    "None": {"type": "null"},
    "Any": {},
}


class ToolSourceError(ValueError):
    """What is wrong with a source; the message starts with the line where there is one."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True)
class ToolClass:
    """A tool class as its source declares it."""

    name: str
    class_name: str
    description: str
    parameters: dict[str, Any]
    has_setup: bool


def parse_source(source: str) -> ast.Module:
    """The syntax tree of a source that compiles. Raises ToolSourceError with the line."""
    if len(source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        raise ToolSourceError(f"the source is longer than {MAX_SOURCE_BYTES} bytes")
    try:
        tree = ast.parse(source)
        compile(source, "<tool>", "exec", dont_inherit=True)  # finds what the grammar alone allows: return outside
    except SyntaxError as error:
        raise ToolSourceError(f"does not compile: {error.msg}", error.lineno or 0) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ToolSourceError(f"does not compile: {error or type(error).__name__}") from error
    return tree


def is_function_source(tree: ast.Module) -> bool:
    """Whether the module is one tool, written as `def call(arguments)`."""
    return any(isinstance(node, ast.FunctionDef) and node.name == FUNCTION for node in tree.body)


def read_tools(source: str) -> list[ToolClass]:
    """Tools of a module in the order of their classes; none where it is written as `def call(arguments)`.

    Raises ToolSourceError where the module holds neither, or a class cannot be a tool.
    """
    tree = parse_source(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and _is_tool(node)]
    if not classes:
        if is_function_source(tree):
            return []
        raise ToolSourceError(f"must define {FUNCTION}(arguments), or a class derived from gpu_workers.tools.Tool")
    tools = [_read_class(node) for node in classes]
    for index, tool in enumerate(tools):
        if tool.name in {other.name for other in tools[:index]}:
            raise ToolSourceError(f"two tools are named {tool.name!r}", classes[index].lineno)
    return tools


def specs_of(source: str, name: str) -> list[ToolSpec]:
    """Declarations of all tools of a source; `name` is that of one written as `def call(arguments)`.

    Raises ToolSourceError.
    """
    tools = read_tools(source)
    if not tools:
        return [ToolSpec(name=name, source=source)]
    return [
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters, source=source)
        for tool in tools
    ]


def _is_tool(node: ast.ClassDef) -> bool:
    return any(_last_name(base) == BASE_CLASS for base in node.bases)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _read_class(node: ast.ClassDef) -> ToolClass:
    values = dict(_literals(node))
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    call = methods.get(FUNCTION)
    if call is None:
        raise ToolSourceError(f"class {node.name} has no method {FUNCTION}(self, ...)", node.lineno)
    for method in (call, methods.get("setup")):
        if isinstance(method, ast.AsyncFunctionDef):
            raise ToolSourceError(f"{node.name}.{method.name} must be a plain method, not async", method.lineno)
    name = values.get("name", _snake_case(node.name))
    if not isinstance(name, str) or not TOOL_NAME.match(name) or "." in name:
        raise ToolSourceError(f"{node.name}.name {name!r} is not a function name", node.lineno)
    description = values.get("description", ast.get_docstring(node) or "")
    parameters = values.get("parameters")
    if not isinstance(description, str) or not (parameters is None or isinstance(parameters, dict)):
        raise ToolSourceError(f"{node.name}: description must be a text, parameters a JSON schema", node.lineno)
    derived = _signature_schema(node.name, call)  # also where a schema is given: it finds what cannot be called
    return ToolClass(name, node.name, description, derived if parameters is None else parameters, "setup" in methods)


def _literals(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for item in node.body:
        target: ast.expr | None = None
        if isinstance(item, ast.Assign) and len(item.targets) == 1:
            target = item.targets[0]
        elif isinstance(item, ast.AnnAssign):
            target = item.target
        value = getattr(item, "value", None)
        if not isinstance(target, ast.Name) or value is None or target.id not in ("name", "description", "parameters"):
            continue
        try:
            yield target.id, ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            message = f"{node.name}.{target.id} must be a literal: it is read without running the source"
            raise ToolSourceError(message, item.lineno) from error


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _signature_schema(class_name: str, call: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Any]:
    """JSON schema of the arguments, from `call`'s annotations."""
    where = f"{class_name}.{call.name}"
    arguments = call.args
    if arguments.posonlyargs or arguments.vararg:
        raise ToolSourceError(f"{where}: arguments are passed by name; / and *args cannot be", call.lineno)
    if not arguments.args:
        raise ToolSourceError(f"{where} must take self", call.lineno)
    named = arguments.args[1:]
    defaults: list[ast.expr | None] = [None] * len(named)
    if arguments.defaults:
        defaults[-len(arguments.defaults) :] = arguments.defaults[-len(named) :] if named else []
    pairs = [*zip(named, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    properties: dict[str, Any] = {}
    required = []
    for argument, default in pairs:
        if argument.annotation is None:
            raise ToolSourceError(f"{where}: argument {argument.arg!r} has no annotation", argument.lineno)
        schema = dict(_annotation_schema(argument.annotation, f"{where}: argument {argument.arg!r}"))
        if default is None:
            required.append(argument.arg)
        else:
            schema |= _default(default)
        properties[argument.arg] = schema
    schema = {"type": "object", "properties": properties, "required": required}
    return schema if arguments.kwarg else {**schema, "additionalProperties": False}


def _default(node: ast.expr) -> dict[str, Any]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return {}
    plain = value is None or isinstance(value, str | int | float | bool)
    return {"default": value} if plain else {}


def _annotation_schema(node: ast.expr, where: str) -> dict[str, Any]:
    match node:
        case ast.Constant(value=None):
            return _SIMPLE["None"]
        case ast.Constant(value=str() as text):
            try:
                return _annotation_schema(ast.parse(text, mode="eval").body, where)
            except SyntaxError as error:
                raise ToolSourceError(f"{where}: {text!r} is not an annotation", node.lineno) from error
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of([_annotation_schema(left, where), _annotation_schema(right, where)])
        case ast.Subscript(value=outer, slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            found = _generic_schema(_last_name(outer), parts, where)
            if found is not None:
                return found
        case ast.Name() | ast.Attribute() if _last_name(node) in _SIMPLE:
            return _SIMPLE[_last_name(node)]
    known = "str, int, float, bool, list, dict, Any, None, Literal, Optional, Union, X | Y and Annotated[X, 'text']"
    message = f"{where}: {ast.unparse(node)} has no JSON schema; use {known}, or give the class `parameters`"
    raise ToolSourceError(message, node.lineno)


def _generic_schema(name: str, parts: list[ast.expr], where: str) -> dict[str, Any] | None:
    """Schema of name[parts]; None where there is none."""
    match name, parts:
        case "list" | "List", [item]:
            return {"type": "array", "items": _annotation_schema(item, where)}
        case "dict" | "Dict", [ast.Name(id="str"), value]:
            return {"type": "object", "additionalProperties": _annotation_schema(value, where)}
        case "Optional", [item]:
            return _any_of([_annotation_schema(item, where), _SIMPLE["None"]])
        case "Union", _:
            return _any_of([_annotation_schema(part, where) for part in parts])
        case "Annotated", [item, *notes]:
            texts = [note.value for note in notes if isinstance(note, ast.Constant) and isinstance(note.value, str)]
            schema = _annotation_schema(item, where)
            return {**schema, "description": texts[0]} if texts else schema
        case "Literal", _:
            values = [part.value for part in parts if isinstance(part, ast.Constant)]
            if len(values) == len(parts) and all(isinstance(v, str | int | bool) or v is None for v in values):
                return {"enum": values}
    return None


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    flat: list[dict[str, Any]] = []
    for schema in schemas:
        flat += schema["anyOf"] if list(schema) == ["anyOf"] else [schema]
    return {"anyOf": flat}
