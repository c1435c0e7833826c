"""Mutants of one function: every place enumerated, none equal to the original or to another, drawn by a seed. Pure."""

import ast
import contextlib
import copy
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_workers.verifiers.mutants.operators import Place, variants

_ATTEMPTS = 5


@dataclass(frozen=True)
class Mutant:
    """The whole program with one node of the function changed; `line` counts from 1 in the original."""

    code: str
    operator: str
    line: int


class MutationError(ValueError):
    """The program cannot be mutated; the message says why."""


def draw_mutants(code: str, function: str, *, seed: str, limit: int) -> list[Mutant]:
    """At most `limit` mutants, drawn without replacement; the same code, function and seed give the same ones."""
    found = all_mutants(code, function)
    random.Random(f"mutants {seed}").shuffle(found)
    return found[:limit]


def all_mutants(code: str, function: str) -> list[Mutant]:
    """Every mutant of the body of a function of a program, in the order of its nodes. Raises MutationError."""
    try:
        tree = _parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise MutationError(f"the program does not parse: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    if not functions:
        raise MutationError(f"the program defines no function {function}() at its top level")
    seen = {ast.dump(tree)}
    found = []
    for node in _nodes(functions[-1]):
        for operator, place, other in variants(node):
            mutated = ast.fix_missing_locations(copy.deepcopy(tree, {id(place): other}))
            shape = ast.dump(mutated)
            if shape in seen or (text := _write(code, place, other, mutated)) == "":
                continue
            seen.add(shape)
            found.append(Mutant(text, operator, place.lineno))
    return found


def _nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Nodes of the body; not its docstring, annotations or the inside of f-strings, whose places are not known."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    todo: list[ast.AST] = list(reversed(body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a text that stands by itself does nothing
        yield node
        if isinstance(node, ast.JoinedStr | ast.arguments):
            continue
        skipped = {"annotation", "returns", "decorator_list"}
        fields = [value for name, value in ast.iter_fields(node) if name not in skipped]
        items = [item for value in fields for item in (value if isinstance(value, list) else [value])]
        children = [item for item in items if isinstance(item, ast.AST)]
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            children.remove(node.body[0])
        todo += reversed(children)


def _write(code: str, place: Place, other: Place, mutated: ast.AST) -> str:
    """The text of a mutated program: the original's but for the node, so that people see what changed.

    Empty where even the rewritten program would be another one.
    """
    wanted = ast.dump(mutated)
    new = ast.unparse(ast.fix_missing_locations(copy.deepcopy(other)))
    for text in (new, f"({new})"):
        if "\n" not in new and _means(spliced := _splice(code, place, text), wanted):
            return spliced
    rewritten = ast.unparse(mutated) + "\n"
    return rewritten if _means(rewritten, wanted) else ""


def _splice(code: str, node: Place, text: str) -> str:
    """The program with another text in the node's place; columns count bytes."""
    lines = code.encode().splitlines(keepends=True)
    end = (node.end_lineno or node.lineno) - 1
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[end][node.end_col_offset :] + b"".join(lines[end + 1 :])
    return (before + text.encode() + after).decode()


def _means(code: str, wanted: str) -> bool:
    try:
        return ast.dump(_parse(code)) == wanted
    except (SyntaxError, ValueError):
        return False


def _parse(code: str) -> ast.Module:
    """The parser of CPython 3.11 may lose count of its depth beside other threads (SystemError): it is asked again."""
    for _ in range(_ATTEMPTS):
        with warnings.catch_warnings(), contextlib.suppress(SystemError):
            warnings.simplefilter("ignore")  # a docstring may hold "\\d"
            return ast.parse(code)
    raise MutationError("the parser gave up on the program")
