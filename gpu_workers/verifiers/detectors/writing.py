"""Which paths a call in Python source writes, moves or removes, as far as it can be told without running it. Pure."""

import ast
from collections.abc import Iterator
from itertools import islice

from gpu_workers.verifiers.detectors.folding import UNKNOWN, fold

MAX_VALUES = 20  # texts that are followed for one name
MAX_PARTS = 200  # of an expression in which one is followed
FIRST = frozenset({"os.remove", "os.unlink", "os.chmod", "os.chown", "os.truncate", "shutil.rmtree", "os.mkfifo"})
SECOND = frozenset({"os.rename", "os.replace", "os.symlink", "os.link", "shutil.copy", "shutil.copy2",
                    "shutil.copyfile", "shutil.copytree", "shutil.move"})  # fmt: skip
METHODS = frozenset({"write_text", "write_bytes", "unlink", "touch", "chmod", "symlink_to", "hardlink_to"})
_FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND")


class Values:
    """Texts that names stand for: one that was assigned, or each that a loop goes through."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._texts[target.id] = [text for text in self.of(value) if text.strip(UNKNOWN)]

    def bind_each(self, target: ast.expr, values: ast.expr) -> None:
        if isinstance(target, ast.Name) and isinstance(values, ast.Tuple | ast.List | ast.Set):
            texts = [text for item in values.elts for text in self.of(item)]
            self._texts[target.id] = [text for text in texts if text.strip(UNKNOWN)][:MAX_VALUES]

    def of(self, node: ast.expr) -> list[str]:
        """Texts of an expression; one name in it is followed."""
        parts = list(islice(ast.walk(node), MAX_PARTS + 1))
        name = next((part.id for part in parts if isinstance(part, ast.Name) and self._texts.get(part.id)), "")
        if not name or len(parts) > MAX_PARTS:
            return [fold(node)]
        return [fold(_Put(name, text).visit(_copied(node))) for text in self._texts[name]]


class _Put(ast.NodeTransformer):
    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.text) if node.id == self.name else node


def _copied(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def written(name: str, node: ast.Call, values: Values) -> Iterator[str]:
    """Paths that a call writes to; `name` is its dotted name."""
    place: ast.expr | None = None
    last = name.rpartition(".")[2]
    if name in ("open", "io.open", "codecs.open") or (last == "open" and name.startswith("pathlib.Path")):
        mode = next((k.value for k in node.keywords if k.arg == "mode"), None)
        by_method = name.startswith("pathlib.Path")
        at = 0 if by_method else 1
        mode = mode or (node.args[at] if len(node.args) > at else None)
        if mode is not None and set(fold(mode)) & set("wax+"):
            place = _owner(node) if by_method else _argument(node, 0)
    elif name == "os.open":
        if len(node.args) > 1 and any(flag in ast.dump(node.args[1]) for flag in _FLAGS):
            place = node.args[0]
    elif name in FIRST or name in SECOND:
        place = _argument(node, 1 if name in SECOND else 0)
    elif last in METHODS:
        place = _owner(node)
    if place is not None:
        yield from (path for path in values.of(place) if path.strip(UNKNOWN))


def _argument(node: ast.Call, index: int) -> ast.expr | None:
    return node.args[index] if len(node.args) > index else None


def _owner(node: ast.Call) -> ast.expr | None:
    return node.func.value if isinstance(node.func, ast.Attribute) else None
