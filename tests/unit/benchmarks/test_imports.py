"""Nothing runs the benchmarks day by day: what they import of the repository must at least be there."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks"
FILES = sorted(FOLDER.glob("*.py"))


def file_of(module: str) -> Path | None:
    """The repository's own source of a module; None for a package or what is installed."""
    if (own := FOLDER / f"{module}.py").exists():
        return own
    if module.split(".")[0] not in ("apps", "gpu_workers", "ratchet"):
        return None
    found = importlib.util.find_spec(module)
    assert found is not None, f"no module {module}"
    return Path(str(found.origin))


def defined(source: str) -> set[str]:
    """Names that a module binds at its top, in branches and imports too."""
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names


def missing(path: Path) -> list[str]:
    lost = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module or (source := file_of(node.module)) is None:
            continue
        there = defined(source.read_text())
        lost += [
            f"{node.module}.{alias.name}" for alias in node.names
            if alias.name not in there and not (source.parent / f"{alias.name}.py").exists()
            and not (source.parent / alias.name).is_dir()
        ]  # fmt: skip
    return lost


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path):
    assert missing(path) == []


def test_a_lost_name_is_seen(tmp_path):
    (tmp_path / "bench.py").write_text("def main():\n    from gpu_workers.contracts.store import Nothing\n")
    assert missing(tmp_path / "bench.py") == ["gpu_workers.contracts.store.Nothing"]
