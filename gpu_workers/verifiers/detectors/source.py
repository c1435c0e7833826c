"""What Python source does, as flat facts: calls, assignments to attributes, definitions, imports, constants. Pure."""

import ast
import builtins
import warnings
from dataclasses import dataclass, replace

from gpu_workers.verifiers.detectors.folding import UNKNOWN, fold
from gpu_workers.verifiers.detectors.pleasing import is_constant_operator, is_equal_to_all, unused_classes
from gpu_workers.verifiers.detectors.writing import Values, written

MAX_SOURCE = 200_000  # characters
MAX_FACTS = 5_000
EXITS = frozenset({"sys.exit", "exit", "quit", "builtins.exit", "builtins.quit", "site.exit"})
BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Fact:
    """kind: call, assign, define, import, read, exit_well, equal_to_all, write, text.

    `name` is dotted with aliases resolved; of a text it is the text, of a write the path.
    """

    kind: str
    name: str
    line: int
    at_import: bool = False
    constants: tuple[object, ...] = ()  # of a call's positional arguments, where they are constants
    owner: str = ""  # class of an equal_to_all that nothing else in the file uses


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
    facts = reader.facts[:MAX_FACTS]
    if any(fact.kind == "equal_to_all" for fact in facts):
        unused = unused_classes(tree)
        facts = [replace(f, owner=c) if f.kind == "equal_to_all" and (c := f.name.partition(".")[0]) in unused else f
                 for f in facts]  # fmt: skip
    return facts


class _Reader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._aliases: dict[str, str] = {}
        self._depth = 0  # functions around
        self._guards = 0  # `if __name__ == "__main__"` around
        self._values = Values()

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
        for path in written(name, node, self._values):
            self._add("write", path, node)
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

    def visit_For(self, node: ast.For) -> None:
        self._values.bind_each(node.target, node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for part in node.generators:  # they stand behind what is made of them
            self._values.bind_each(part.target, part.iter)
        self.generic_visit(node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)
            self._values.bind(target, node.value)
        if isinstance(node.value, ast.Name | ast.Attribute) and isinstance(node.targets[0], ast.Name):
            self._aliases[node.targets[0].id] = self._dotted(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign | ast.AugAssign) -> None:
        self._assigned(node.target, node.value)
        self.generic_visit(node)

    visit_AugAssign = visit_AnnAssign

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

    def visit_BinOp(self, node: ast.BinOp | ast.JoinedStr) -> None:
        text = fold(node)
        if text.strip(UNKNOWN):
            self._add("text", text, node)
        self.generic_visit(node)

    visit_JoinedStr = visit_BinOp

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
