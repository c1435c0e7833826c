"""Parser of the function calls a policy writes: Python syntax or tagged JSON, literals only. Pure."""

import ast
import json
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

MAX_TEXT = 32_768  # characters; a longer "call" is refused before it is parsed
SOURCE_NAME = "<call>"

# A policy may write "\d" inside a string; Python would warn on every such text.
warnings.filterwarnings("ignore", message="invalid escape sequence", category=DeprecationWarning, module="<call>")

_FENCE = re.compile(r"\A```[A-Za-z_]*[ \t]*\n(.*?)\n?[ \t]*```\Z", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class CallSyntaxError(ValueError):
    """The text is not a call; the message says where and why."""


@dataclass(frozen=True)
class ParsedCall:
    """One call. `args` are positional values; tuples have become lists."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def parse_calls(text: str, tool_format: str) -> list[ParsedCall]:
    """Calls of `text` in a task's `tool_format` (python | json)."""
    return parse_json_calls(text) if tool_format == "json" else parse_python_calls(text)


def parse_python_calls(text: str) -> list[ParsedCall]:
    """Calls of a text that is nothing but `f(a=1)`, several of them on lines of their own, or `[f(a=1), g()]`.

    Surrounding white space and one code fence are forgiven, nothing else is. Raises CallSyntaxError.
    """
    source = _unfence(text)
    try:
        module = ast.parse(source, filename=SOURCE_NAME)
    except SyntaxError as error:
        raise CallSyntaxError(f"not a function call: {error.msg} (line {error.lineno})") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CallSyntaxError(f"not a function call: {error or type(error).__name__}") from error
    calls: list[ParsedCall] = []
    for statement in module.body:
        if not isinstance(statement, ast.Expr):
            raise CallSyntaxError(f"only calls are allowed, found {type(statement).__name__} (line {statement.lineno})")
        nodes = statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
        calls.extend(_python_call(node) for node in nodes)
    if not calls:
        raise CallSyntaxError("no function call in the text")
    return calls


def parse_json_calls(text: str) -> list[ParsedCall]:
    """Calls written as <tool_call>{"name": …, "arguments": {…}}</tool_call>, or as bare JSON (object or list).

    Words around the tags are allowed; every tag must hold one valid call. Raises CallSyntaxError.
    """
    source = _unfence(text)
    if "<tool_call>" not in source and "</tool_call>" not in source:
        value = load_json(source)
        items = value if isinstance(value, list) else [value]
        if not items:
            raise CallSyntaxError("no function call in the text")
        return [json_call(item) for item in items]
    bodies = _TAGGED.findall(source)
    if len(bodies) != source.count("<tool_call>") or len(bodies) != source.count("</tool_call>"):
        raise CallSyntaxError("<tool_call> tags do not pair up")
    return [json_call(load_json(body.strip())) for body in bodies]


def bind_arguments(call: ParsedCall, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name; positional ones take the names of the JSON schema `parameters` in its order."""
    names: Sequence[str] = list(parameters.get("properties", {}))
    if len(call.args) > len(names):
        raise CallSyntaxError(f"{call.name}() takes {len(names)} arguments, got {len(call.args)} positional ones")
    bound = dict(zip(names, call.args, strict=False))
    for name, value in call.kwargs.items():
        if name in bound:
            raise CallSyntaxError(f"{call.name}() got two values for {name!r}")
        bound[name] = value
    return bound


def _unfence(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise CallSyntaxError(f"text of {len(text)} characters is too long for a call (limit {MAX_TEXT})")
    stripped = text.strip()
    fenced = _FENCE.match(stripped)
    return (fenced.group(1) if fenced else stripped).strip()


def _python_call(node: ast.expr) -> ParsedCall:
    if not isinstance(node, ast.Call):
        raise CallSyntaxError(f"only calls are allowed, found {type(node).__name__} (line {node.lineno})")
    name = _dotted_name(node.func)
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise CallSyntaxError(f"{name}(): ** is not allowed")
        if keyword.arg in kwargs:
            raise CallSyntaxError(f"{name}(): keyword {keyword.arg!r} is repeated")
        kwargs[keyword.arg] = _literal(keyword.value)
    return ParsedCall(name=name, args=tuple(_literal(arg) for arg in node.args), kwargs=kwargs)


def _dotted_name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise CallSyntaxError(f"a function is called by its name, found {type(node).__name__}")
    return ".".join(reversed([*parts, node.id]))


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as text):
            return _storable(text)
        case ast.Constant(value=bool() | int() | float() | None):
            return _finite(node.value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as number)) if not (
            isinstance(number, bool)
        ):
            return _finite(-number if isinstance(node.op, ast.USub) else number)
        case ast.List() | ast.Tuple():
            return [_literal(item) for item in node.elts]
        case ast.Dict():
            return _literal_dict(node)
    raise CallSyntaxError(f"arguments must be literals, found {type(node).__name__} (line {node.lineno})")


def _literal_dict(node: ast.Dict) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            raise CallSyntaxError(f"keys of a dictionary must be strings (line {node.lineno})")
        if key.value in result:
            raise CallSyntaxError(f"key {key.value!r} is repeated in a dictionary")
        result[_storable(key.value)] = _literal(value)
    return result


def _storable(text: str) -> str:
    """Refuse halves of surrogate pairs: no file, message or database could hold the call."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CallSyntaxError("a text holds half a character (a lone surrogate)") from error
    return text


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise CallSyntaxError("a number is too large to be finite")
    return value


def load_json(text: str) -> Any:
    """A JSON value without repeated keys, NaN or infinity. Raises CallSyntaxError."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) != len(keys):
            raise CallSyntaxError(f"a JSON key is repeated among {keys}")
        return dict(items)

    def refuse(constant: str) -> NoReturn:
        raise CallSyntaxError(f"{constant} is not JSON")

    try:
        value = json.loads(
            text, object_pairs_hook=pairs, parse_constant=refuse, parse_float=lambda digits: _finite(float(digits))
        )
        _storable(json.dumps(value, ensure_ascii=False))
        return value
    except json.JSONDecodeError as error:
        raise CallSyntaxError(f"not JSON: {error.msg} (line {error.lineno})") from error
    except CallSyntaxError:
        raise
    except (ValueError, RecursionError) as error:
        raise CallSyntaxError(f"not JSON: {error or type(error).__name__}") from error


def json_call(item: Any) -> ParsedCall:
    """The call of one {"name": …, "arguments": {…}}. Raises CallSyntaxError."""
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"]:
        raise CallSyntaxError('a call is an object {"name": text, "arguments": object}')
    unknown = set(item) - {"name", "arguments"}
    if unknown:
        raise CallSyntaxError(f"unknown keys in a call: {sorted(unknown)}")
    arguments = item.get("arguments", {})
    if not isinstance(arguments, dict):
        raise CallSyntaxError(f"arguments of {item['name']!r} must be an object, got {type(arguments).__name__}")
    return ParsedCall(name=item["name"], kwargs=arguments)
