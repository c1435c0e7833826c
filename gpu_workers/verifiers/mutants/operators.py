"""The mutation operators: what one node of a program may become. Pure."""

import ast
from collections.abc import Iterator

Place = ast.expr | ast.stmt
Variant = tuple[str, Place, Place]  # operator's name, the node that is replaced, the one in its place

ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Sub),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mult),
    ast.Mod: (ast.Mult, ast.FloorDiv),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd, ast.BitOr),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}


def variants(node: ast.AST) -> Iterator[Variant]:
    """Everything that the operators make of one node, in a fixed order; a condition is replaced by itself."""
    match node:
        case ast.If() | ast.While():
            yield "negation", node.test, _negated(node.test)
            if isinstance(node, ast.If):
                yield "branch", node.test, ast.Constant(value=False)
                if node.orelse:
                    yield "branch", node, ast.If(test=node.test, body=node.body, orelse=[])
        case ast.expr() | ast.stmt():
            for operator, other in _changed(node):
                yield operator, node, other


def _changed(node: Place) -> Iterator[tuple[str, Place]]:
    match node:
        case ast.BinOp():
            yield from _binary(node)
        case ast.Compare():
            yield from _compare(node)
        case ast.BoolOp():
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield "boolean", ast.BoolOp(op=other, values=node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "negation", node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield "sign", node.operand
        case ast.Constant():
            yield from _constant(node)
        case ast.Call():
            yield from _call(node)
        case ast.Subscript():
            yield from _subscript(node)
        case ast.IfExp():
            yield "branch", node.body
            yield "branch", node.orelse
        case ast.stmt():
            yield from _statement(node)


def _binary(node: ast.BinOp) -> Iterator[tuple[str, Place]]:
    for kind in ARITHMETIC.get(type(node.op), ()):
        yield "arithmetic", ast.BinOp(left=node.left, op=kind(), right=node.right)


def _compare(node: ast.Compare) -> Iterator[tuple[str, Place]]:
    for index, operator in enumerate(node.ops):
        for kind in COMPARISONS[type(operator)]:
            ops = [*node.ops[:index], kind(), *node.ops[index + 1 :]]
            yield "comparison", ast.Compare(left=node.left, ops=ops, comparators=node.comparators)


def _constant(node: ast.Constant) -> Iterator[tuple[str, Place]]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(value=not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value=value + 1)
        yield "constant", _number(value - 1)
    elif isinstance(value, float):
        yield "constant", ast.Constant(value=value + 1.0)
        yield "constant", ast.Constant(value=value / 2 if value else 0.5)
    elif isinstance(value, str):
        yield "constant", ast.Constant(value="" if value else "x")


def _number(value: int) -> ast.expr:
    """Python has no negative literals."""
    return ast.Constant(value=value) if value >= 0 else ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=-value))


def _call(node: ast.Call) -> Iterator[tuple[str, Place]]:
    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
    if len(node.args) >= 2 and not starred:
        first, second, *rest = node.args
        yield "swapped arguments", ast.Call(func=node.func, args=[second, first, *rest], keywords=node.keywords)
    if isinstance(node.func, ast.Name) and node.func.id == "range" and not starred:
        for index, argument in enumerate(node.args[:2]):
            for nudged in _nudged(argument):
                args = [*node.args[:index], nudged, *node.args[index + 1 :]]
                yield "off by one", ast.Call(func=node.func, args=args, keywords=node.keywords)
    if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other = ast.Name(id="min" if node.func.id == "max" else "max", ctx=ast.Load())
        yield "call", ast.Call(func=other, args=node.args, keywords=node.keywords)


def _subscript(node: ast.Subscript) -> Iterator[tuple[str, Place]]:
    if not isinstance(node.ctx, ast.Load):
        return
    if not isinstance(node.slice, ast.Slice):
        if not isinstance(node.slice, ast.Tuple):
            for nudged in _nudged(node.slice):
                yield "off by one", ast.Subscript(value=node.value, slice=nudged, ctx=node.ctx)
        return
    for bound in ("lower", "upper"):
        old = getattr(node.slice, bound)
        for nudged in _nudged(old) if old is not None else ():
            moved = ast.Slice(lower=node.slice.lower, upper=node.slice.upper, step=node.slice.step)
            setattr(moved, bound, nudged)
            yield "off by one", ast.Subscript(value=node.value, slice=moved, ctx=node.ctx)


def _nudged(node: ast.expr) -> Iterator[ast.expr]:
    """One more and one less; a literal is the operator of constants' own."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.Constant) or negative:
        return
    for operator in (ast.Add(), ast.Sub()):
        yield ast.BinOp(left=node, op=operator, right=ast.Constant(value=1))


def _statement(node: ast.stmt) -> Iterator[tuple[str, Place]]:
    match node:
        case ast.Return() if node.value is not None and not _is_none(node.value):
            yield "return", ast.Return(value=ast.Constant(value=None))
        case ast.AugAssign():
            for kind in ARITHMETIC.get(type(node.op), ()):
                yield "arithmetic", ast.AugAssign(target=node.target, op=kind(), value=node.value)
            yield "statement", ast.Pass()
        case ast.Assign():
            yield "statement", ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield "statement", ast.Pass()
        case ast.Break():
            yield "statement", ast.Continue()
        case ast.Continue():
            yield "statement", ast.Break()


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(op=ast.Not(), operand=test)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
