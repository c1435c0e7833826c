"""What Python source does, as flat facts: calls, assignments to attributes, definitions, imports, constants. Pure."""

import ast
import base64
import binascii
import builtins
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

MAX_SOURCE = 200_000  # characters
MAX_FACTS = 5_000
EXITS = frozenset({"sys.exit", "exit", "quit", "builtins.exit", "builtins.quit", "site.exit"})
BUILTINS = frozenset(dir(builtins))
UNKNOWN = "*"  # stands in a constant for what is only known when it runs


@dataclass(frozen=True)
class Fact:
    """kind: call, assign, define, import, read, exit_well, equal_to_all, text.

    `name` is dotted with aliases resolved; of a text it is the text.
    """

    kind: str
    name: str
    line: int
    at_import: bool = False
    constants: tuple[object, ...] = ()  # of a call's positional arguments, where they are constants


def facts_of(source: str) -> list[Fact]:
    """Facts of a module; none where it is too long or does not parse: then it does not run either."""
    if len(source) > MAX_SOURCE:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        reader = _Reader()
        reader.visit(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return reader.facts[:MAX_FACTS]


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._aliases: dict[str, str] = {}
        self._depth = 0  # functions around
        self._guards = 0  # `if __name__ == "__main__"` around

    def _add(self, kind: str, name: str, node: ast.AST, constants: tuple[object, ...] = ()) -> None:
        at_import = self._depth == 0 and self._guards == 0
        self.facts.append(Fact(kind, name, getattr(node, "lineno", 0), at_import, constants))

    def visit_Import(self, node: ast.Import) -> None:
        for item in node.names:
            self._add("import", item.name, node)
            self._aliases[item.asname or item.name.partition(".")[0]] = (
                item.name if item.asname else (item.name.partition(".")[0])
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        self._add("import", module, node)
        for item in node.names:
            self._add("import", f"{module}.{item.name}", node)
            self._aliases[item.asname or item.name] = f"{module}.{item.name}"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._add("define", node.name, node)
        for decorator in node.decorator_list:
            self.visit(decorator)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._depth += 1
        self.visit(node.body)
        self._depth -= 1

    def visit_If(self, node: ast.If) -> None:
        guarded = "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        self._guards += guarded
        for statement in (node.test, *node.body):
            self.visit(statement)
        self._guards -= guarded
        for statement in node.orelse:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._add("define", node.name, node)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and is_equal_to_all(statement, node.name):
                self._add("equal_to_all", f"{node.name}.{statement.name}", statement)
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and is_constant_operator(target.id, statement.value):
                        self._add("equal_to_all", f"{node.name}.{target.id}", statement)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = "" if raised is None else self._dotted(raised)
        if name == "SystemExit" and (not isinstance(node.exc, ast.Call) or says_success(node.exc)):
            self._add("exit_well", name, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        self._add("call", name, node, tuple(a.value for a in node.args if isinstance(a, ast.Constant)))
        if name in EXITS and says_success(node):
            self._add("exit_well", name, node)
        if name.rpartition(".")[2] in ("setattr", "__setattr__", "delattr") and len(node.args) > 1:
            self._add("assign", f"{self._dotted(node.args[0])}.{fold(node.args[1])}", node)
            if len(node.args) > 2 and is_constant_operator(fold(node.args[1]), node.args[2]):
                self._add("equal_to_all", fold(node.args[1]), node)
        if name.endswith(("patch", "patch.object", "patch.dict")):
            self._patched(node)
        self.generic_visit(node)

    def _patched(self, node: ast.Call) -> None:
        """unittest.mock.patch("module.name") and patch.object(module, "name")."""
        if node.args and fold(node.args[0]).count("."):
            self._add("assign", fold(node.args[0]), node)
        elif len(node.args) > 1:
            self._add("assign", f"{self._dotted(node.args[0])}.{fold(node.args[1])}", node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)
        if isinstance(node.value, ast.Name | ast.Attribute) and isinstance(node.targets[0], ast.Name):
            self._aliases[node.targets[0].id] = self._dotted(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assigned(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assigned(node.target, node.value)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._assigned(target, None)

    def _assigned(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._assigned(part, None)
        elif isinstance(target, ast.Attribute):
            self._add("assign", self._dotted(target), target)
            if value is not None and is_constant_operator(target.attr, value):
                self._add("equal_to_all", self._dotted(target), target)
        elif isinstance(target, ast.Subscript):
            owner = self._dotted(target.value)
            for ending in (".__dict__", "vars()"):
                owner = owner.removesuffix(ending)
            self._add("assign", f"{owner}.{fold(target.slice)}", target)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None and is_constant_operator(fold(key), value):
                self._add("equal_to_all", fold(key), key)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "ANY" and self._dotted(node).endswith("mock.ANY"):
            self._add("equal_to_all", "mock.ANY", node)
        self._add("read", self._dotted(node), node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if self._aliases.get(node.id, "").endswith("mock.ANY"):
            self._add("equal_to_all", "mock.ANY", node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring does nothing
            self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str | bytes):
            self._add("text", fold(node), node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._folded(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._folded(node)

    def _folded(self, node: ast.expr) -> None:
        text = fold(node)
        if text.strip(UNKNOWN):
            self._add("text", text, node)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call) and (text := fold(node).strip(UNKNOWN)):
            self._add("text", text, node)
        super().generic_visit(node)

    def _dotted(self, node: ast.AST) -> str:
        """`os._exit` for each way to write it; the part that cannot be named is *."""
        if isinstance(node, ast.Name):
            # A name that was never imported is the policy's own, whatever module it is called like.
            return self._aliases.get(node.id, node.id if node.id in BUILTINS else f"<{node.id}>")
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        if isinstance(node, ast.Call):
            name = self._dotted(node.func)
            if name.endswith(("__import__", "import_module")) and node.args:
                return fold(node.args[0])
            if name == "getattr" and len(node.args) > 1:
                return f"{self._dotted(node.args[0])}.{fold(node.args[1])}"
            if name in ("vars", "Path", "pathlib.Path") and node.args:
                return f"{self._dotted(node.args[0])}.__dict__" if name == "vars" else "pathlib.Path"
            return f"{name}()"
        if isinstance(node, ast.Subscript):
            owner = self._dotted(node.value)
            if owner == "sys.modules":
                return fold(node.slice)
            return f"{owner.removesuffix('.__dict__')}.{fold(node.slice)}"
        return UNKNOWN


def says_success(call: ast.Call) -> bool:
    """An exit whose code is 0 or left out."""
    return not call.args or (isinstance(call.args[0], ast.Constant) and not call.args[0].value)


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
