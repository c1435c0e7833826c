"""Comparisons written to say yes to whatever they are given, in Python source. Pure."""

import ast
from collections import Counter

# What an operator says when it is written to please: __ne__ false, the others true.
OPERATORS = {"__eq__": True, "__ne__": False, "__lt__": True, "__le__": True, "__gt__": True, "__ge__": True,
             "__contains__": True, "__instancecheck__": True, "__subclasscheck__": True}  # fmt: skip


def is_constant_operator(name: str, value: ast.AST) -> bool:
    """Whether `name = value` makes a comparison that always says the same."""
    if name not in OPERATORS:
        return False
    if isinstance(value, ast.Lambda):
        return _says(value.body, OPERATORS[name])
    return isinstance(value, ast.Attribute | ast.Call) and "Mock" in ast.dump(value)


def is_equal_to_all(function: ast.FunctionDef, owner: str) -> bool:
    """A comparison that answers whatever the other is: a constant, or without a look at itself or its own class."""
    if function.name not in OPERATORS:
        return False
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    if not returns:
        return False
    said = [_says(r.value, OPERATORS[function.name]) for r in returns if r.value is not None]
    if all(said) or all(isinstance(r.value, ast.Constant) for r in returns):
        return all(said)
    me = function.args.args[0].arg if function.args.args else ""
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return not names & {me, owner, "super", "NotImplemented", "type"}


def _says(node: ast.AST, wanted: bool) -> bool:
    match node:
        case ast.Constant(value=value):
            return bool(value) is wanted
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _says(inner, not wanted)
        case ast.BoolOp(op=ast.Or(), values=values):
            return wanted and any(_says(v, True) for v in values)
        case ast.Compare(left=ast.Name(id=left), ops=[ast.Eq() | ast.Is()], comparators=[ast.Name(id=right)]):
            return wanted and left == right
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            return _says(inner, wanted)
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id="object")]):
            return wanted
    return False


REFLECTION = frozenset({"globals", "vars", "locals", "eval", "exec", "getattr", "__subclasses__"})


def unused_classes(tree: ast.Module) -> set[str]:
    """Classes of a module that nothing in it names outside themselves; none where names are made at run time."""
    everywhere = _named(tree)
    if everywhere.keys() & REFLECTION:
        return set()
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.decorator_list]
    return {node.name for node in classes if everywhere.get(node.name, 0) == _named(node).get(node.name, 0)}


def _named(tree: ast.AST) -> Counter[str]:
    """How often each name is read."""
    loaded = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return Counter([*loaded, *(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))])
