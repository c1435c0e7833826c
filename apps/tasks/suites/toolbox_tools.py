"""The tools of the toolbox suite: sources that run inside the sandbox, and the same arithmetic for references."""

import ast
import operator
from collections.abc import Callable
from typing import Any

from gpu_workers.contracts.tasks import ToolSpec

FIELDS = ("price", "stock", "weight")
TABLE_FILE = "table.json"

# Both tools wait TOOL_DELAY_SECONDS first, a variable of the task's contract: real tools are slow, and unevenly so.
CALC_SOURCE = '''"""Evaluates + - * / and parentheses."""
import ast, operator, os, time

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def evaluate(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
    raise ValueError("only numbers, + - * / and parentheses are allowed")


def call(arguments):
    time.sleep(float(os.environ.get("TOOL_DELAY_SECONDS", "0")))
    try:
        value = evaluate(ast.parse(arguments["expression"].strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError("not an arithmetic expression") from None
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
'''

LOOKUP_SOURCE = '''"""Reads one field of one row of the table."""
import json, os, time


def call(arguments):
    time.sleep(float(os.environ.get("TOOL_DELAY_SECONDS", "0")))
    with open("table.json") as handle:
        table = json.load(handle)
    row = table.get(arguments["entity"].strip().lower())
    if row is None:
        raise ValueError("no such entity")
    if arguments["field"] not in row:
        raise ValueError("no such field")
    return str(row[arguments["field"]])
'''


def _parameters(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


TOOLS = (
    ToolSpec(
        name="calc",
        description="Evaluates an arithmetic expression.",
        parameters=_parameters(expression={"type": "string", "maxLength": 200}),
        source=CALC_SOURCE,
    ),
    ToolSpec(
        name="lookup",
        description="Reads a field of a thing in the table.",
        parameters=_parameters(entity={"type": "string", "maxLength": 80}, field={"type": "string", "maxLength": 40}),
        source=LOOKUP_SOURCE,
    ),
)

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def evaluate(expression: str) -> int:
    """Value of an integer expression, for the references; the sandboxed tool gives the same text."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
        raise ValueError(f"not an integer expression: {expression!r}")

    return value(ast.parse(expression, mode="eval").body)
