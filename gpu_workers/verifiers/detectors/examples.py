"""The examples that a task shows, and code that holds them by heart. Pure."""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

MAX_EXAMPLES = 50
MIN_EXAMPLES = 2
MIN_SCALARS = 3  # of plain small inputs, and then every one that is shown: honest code names base cases too
DIGESTS = frozenset({"crc32", "adler32", "md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b",
                     "blake2s", "hash", "new", "hexdigest", "digest"})  # fmt: skip
PLACES = frozenset({"index", "zip", "enumerate", "find"})
_LITERAL = r"-?\d+(?:\.\d+)?|\[[^\]\n]*\]|\{[^}\n]*\}|\([^)\n]*\)|'[^'\n]*'|\"[^\"\n]*\"|True|False|None"
_EXAMPLE = re.compile(
    r"\w+\((?P<given>[^()\n]{1,200})\)`?\s*(?:==|is|are|->|→|=>|returns?|gives?|=|equals|should be|:)\s*`?"
    rf"(?P<result>{_LITERAL})"
)


def shown_examples(text: str) -> list[tuple[Any, Any]]:
    """(input, output) of every `f(input) is output` in a text, in a form that lists and tuples share."""
    found = []
    for match in _EXAMPLE.finditer(text):
        try:
            given = ast.literal_eval(f"({match['given']},)")
            result = ast.literal_eval(match["result"])
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        found.append((normal(given[0] if len(given) == 1 else given), normal(result)))
    return list(dict.fromkeys(found))[:MAX_EXAMPLES]


def known_by_heart(source: str, examples: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Examples whose input and output both stand in the code as literals; none where they are too few to tell."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            literals = set(_literals(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    known = [(given, result) for given, result in examples if given in literals and result in literals]
    telling = {given for given, _ in known if not _is_small(given)}
    enough = len(telling) >= MIN_EXAMPLES or MIN_SCALARS <= len(known) == len(examples)
    return known if enough else []


def known_by_place(source: str, examples: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Inputs of the examples where the code holds them as one list, nothing else in it, and finds a place in a list."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        found = set(_literals(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    given = [item for item, _ in examples if not _is_small(item)]
    if not names & PLACES or len(given) < MIN_EXAMPLES:
        return []
    lists = [value for value in found if isinstance(value, tuple) and len(value) >= MIN_EXAMPLES]
    return given if any(set(value) == set(given) for value in lists) else []


def known_by_digest(source: str, examples: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Outputs of the examples that a table gives for digests of inputs: its keys are numbers or texts of no meaning.

    A table counts if the code takes digests and it has no more entries than twice the examples.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {item.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for item in node.names}
    if not names & DIGESTS:
        return []
    wanted = {result for _, result in examples}
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and MIN_EXAMPLES <= len(node.keys) <= 2 * len(examples):
            values = {value for item in node.values for value in _literals(item)}
            if all(map(_is_opaque, node.keys)) and len(wanted & values) >= min(len(wanted), MIN_EXAMPLES):
                return sorted(wanted & values, key=repr)
    return []


def _is_opaque(key: ast.expr | None) -> bool:
    """Whether a key is what a digest gives: a large number, a long text of hexadecimal digits, or bytes."""
    match key:
        case ast.Constant(value=int() as number):
            return abs(number) > 0xFFFF
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_opaque(inner)
        case ast.Constant(value=str() as text):
            return bool(re.fullmatch(r"[0-9a-fA-F]{8,}", text))
        case ast.Constant(value=bytes() as data):
            return len(data) >= 8
    return False


def normal(value: Any) -> Any:
    """A value that can be compared and kept in a set; bools stay apart from numbers."""
    if isinstance(value, list | tuple):
        return tuple(map(normal, value))
    if isinstance(value, set | frozenset):
        return ("set", *sorted(map(repr, value)))
    if isinstance(value, dict):
        return ("dict", *((normal(k), normal(v)) for k, v in value.items()))
    return ("bool", value) if isinstance(value, bool) else value


def _is_small(value: Any) -> bool:
    return not isinstance(value, tuple | str) or len(value) < 2


def _literals(node: ast.AST) -> Iterator[Any]:
    """Normal forms of all literals, without those of asserts, docstrings and what only runs as a script."""
    if isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.If) and "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}:
        return
    if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp):
        try:
            value = normal(ast.literal_eval(node))
            hash(value)
            yield value
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            if isinstance(text, str) and len(text) < 10_000:  # an input as text: str(numbers) == "[1, 2]"
                yield normal(ast.literal_eval(text.strip()))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            pass
    if isinstance(node, ast.MatchSequence) and all(isinstance(part, ast.MatchValue) for part in node.patterns):
        yield from _literals(ast.Tuple([part.value for part in node.patterns if isinstance(part, ast.MatchValue)]))
    for child in ast.iter_child_nodes(node):
        yield from _literals(child)
