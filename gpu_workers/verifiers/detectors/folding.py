"""The text that an expression of Python gives, as far as it can be told without running it. Pure."""

import ast
import base64
import binascii
from collections.abc import Iterator

UNKNOWN = "*"  # stands in a text for what is only known when it runs


def fold(node: ast.AST) -> str:
    """The text an expression gives, as far as it can be told without running it."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Constant(value=bytes() as data):
            return data.decode("utf-8", "replace")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return fold(left) + fold(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return f"{fold(left)}/{fold(right)}".replace("//", "/")
        case ast.JoinedStr(values=values):
            return "".join(fold(value) for value in values)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as glue), attr="join"), args=[items]):
            return glue.join(_each(items))
        case ast.Call(func=ast.Attribute(attr="join" | "joinpath" as attr, value=owner), args=args) if args:
            parts = [fold(arg) for arg in args]
            return "/".join([fold(owner), *parts] if attr == "joinpath" else parts).replace("//", "/")
        case ast.Call(func=ast.Name(id="Path" | "PurePath" | "str" | "open"), args=[first, *_]):
            return fold(first)
        case ast.Call(func=ast.Attribute(attr="Path" | "PosixPath"), args=[first, *_]):
            return fold(first)
        case ast.Call(func=ast.Attribute(attr="b64decode"), args=[first, *_]):
            return _decoded(fold(first))
        case ast.Call(func=ast.Attribute(attr="fromhex"), args=[first]):
            return _unhex(fold(first))
        case ast.Call(func=ast.Attribute(attr="decode" | "strip" | "format", value=inner)):
            return fold(inner)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp())):
            return fold(inner)[::-1]
    return UNKNOWN


def _each(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            yield from map(fold, items)
        case ast.Call(func=ast.Name(id="map"), args=[ast.Name(id="chr"), ast.List(elts=items) | ast.Tuple(elts=items)]):
            codes = [item.value for item in items if isinstance(item, ast.Constant)]
            yield from (chr(code) for code in codes if isinstance(code, int) and 0 < code < 0x110000)
        case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
            yield fold(inner)[::-1]
        case _:
            yield fold(node)


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return UNKNOWN


def _unhex(text: str) -> str:
    try:
        return bytes.fromhex(text).decode("utf-8", "replace")
    except ValueError:
        return UNKNOWN
