"""Spec files in YAML or JSON: read strictly, with the line of every field, so that a refusal can point at it."""

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ratchet_client.errors import FieldError, SpecError

MAX_BYTES = 1 << 20
_MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core words: 2e-4 is a number, `no` and 2026-01-01 are text."""


# PyYAML's own table is of YAML 1.1, where 2e-4 is a text and `off` is False.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+0123456789."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass
class SpecFile:
    """What a file says, and on which line each dotted path stands."""

    name: str
    value: Any
    lines: dict[str, int] = field(default_factory=dict)

    def where(self, path: str) -> str:
        """`name:line` of the field, or of what encloses it; empty when nothing is known."""
        while path not in self.lines and "." in path:
            path = path.rpartition(".")[0]
        line = self.lines.get(path)
        return f"{self.name}:{line}" if line else ""


def read_spec(source: str, text: str | None = None) -> SpecFile:
    """Read a file of YAML or JSON (`text` instead, where it is given). Raises SpecError with the line."""
    if text is None:
        text = _read(Path(source))
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError(f"{source}:{line}: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise SpecError(f"{source} is neither YAML nor JSON: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{source} is nested too deeply.") from error
    if node is None:
        raise SpecError(f"{source} is empty.")
    spec = SpecFile(source, None)
    spec.value = _value(node, "", spec, 0)
    return spec


def set_field(spec: dict[str, Any], assignment: str) -> None:
    """`rollout.group_size=8` on a spec; the value is read as in a file. Raises SpecError."""
    path, sign, text = assignment.partition("=")
    if not sign or not path:
        raise SpecError(f"{assignment!r} must read path=value, e.g. rollout.group_size=8.")
    *parents, last = path.split(".")
    for name in parents:
        spec = spec.setdefault(name, {})
        if not isinstance(spec, dict):
            raise SpecError(f"{path} cannot be set: {name} is not an object.", fields=[FieldError(path, "no object")])
    spec[last] = read_spec(f"--set {path}", text).value if text else ""


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(f"{path} is larger than {MAX_BYTES // 1024} KiB: is this the spec?")
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 (byte {error.start}).") from error


def _value(node: yaml.Node, path: str, spec: SpecFile, depth: int) -> Any:
    line = node.start_mark.line + 1
    spec.lines.setdefault(path, line)
    if depth > _MAX_DEPTH:
        raise SpecError(f"{spec.name}:{line}: nested deeper than {_MAX_DEPTH} levels.")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, f"{spec.name}:{line}")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{path}.{index}", spec, depth + 1) for index, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line, key = key_node.start_mark.line + 1, key_node.value
        if not isinstance(key_node, yaml.ScalarNode):
            raise SpecError(f"{spec.name}:{line}: the name of a field must be a text.")
        if key in values:
            raise SpecError(f"{spec.name}:{line}: {key} is there twice.")
        inner = f"{path}.{key}" if path else key
        spec.lines[inner] = line
        values[key] = _value(value_node, inner, spec, depth + 1)
    return values


def _scalar(node: yaml.ScalarNode, where: str) -> Any:
    kind, text = node.tag.rpartition(":")[2], node.value
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int" if len(text) < 100:
            return int(text)
        case "float" if math.isfinite(float(text)):
            return float(text)
    raise SpecError(f"{where}: {json.dumps(text[:40])} is no text, number, true, false or null that a spec can hold.")
