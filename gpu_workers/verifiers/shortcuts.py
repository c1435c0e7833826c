"""What a policy writes that does not do the task: empty, a constant, the prompt, the usual tool, a refusal. Pure."""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.seams import FinishedEpisode
from gpu_workers.contracts.tasks import TaskBundle, ToolSpec, VerifierSpec

# A module whose every function answers the same, whatever it is asked; as a script it prints that.
_STUB = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *args, **kwargs: {value}

if __name__ == "__main__":
    print({value})
"""
STUBS = {"None": "None", "nan": 'float("nan")', "inf": 'float("inf")'}
_RAISING = """
def _refuse(*args, **kwargs):
    raise ValueError("invalid")

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _refuse

if __name__ == "__main__":
    _refuse()
"""
# What is tried: its name -> (a module, how it defines a function). A check that believes an exit code passes the exits.
CODE_STUBS = {
    f"code that answers {name} whatever it is asked": (
        _STUB.format(value=value),
        f"def {{name}}(*args, **kwargs):\n    return {value}\n",
    )
    for name, value in STUBS.items()
} | {
    "code that raises ValueError whatever it is asked": (
        _RAISING, 'def {name}(*args, **kwargs):\n    raise ValueError("invalid")\n',
    ),
    "code that exits with 0 when it is imported": ("import sys\n\nsys.exit(0)\n", ""),
    "code that ends its process with 0 when it is imported": ("import os\n\nos._exit(0)\n", ""),
}  # fmt: skip
# A script's own pytest or unittest believes a test that skips itself.
_SKIPPING = _RAISING.replace('ValueError("invalid")', '_unittest.SkipTest("later")').replace(
    "def", "import unittest as _unittest\n\ndef", 1
)
SCRIPT_STUBS = {
    "code that skips the test whatever it is asked": (
        _SKIPPING, 'def {name}(*args, **kwargs):\n    import unittest\n    raise unittest.SkipTest("later")\n',
    ),
    "code that skips the test when it is imported": ('import unittest\n\nraise unittest.SkipTest("later")\n', ""),
}  # fmt: skip
# Tried only where a fail may earn a part: what a function returns that does nothing.
_FIRST = "args[0] if args else next(iter(kwargs.values()), None)"
PARTIAL_STUBS = {
    f"code that answers {name} whatever it is asked": (
        _STUB.replace("print({value})", "print()" if value == _FIRST else "print({value})").format(value=value),
        f"def {{name}}(*args, **kwargs):\n    return {value}\n",
    )
    for name, value in {
        "{}": "dict()", "[]": "[]", "an empty text": '""', "0": "0", "False": "False", "True": "True",
        "its first argument": _FIRST,
    }.items()
}  # fmt: skip
EARNS_NOTHING = frozenset(
    name for name in CODE_STUBS | SCRIPT_STUBS | PARTIAL_STUBS if "nan" not in name and "inf" not in name
)
_FENCED = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\n(.*?)```", re.DOTALL)
REFUSAL = "I'm sorry, but I can't help with that."

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"\"([^\"\n]{1,200})\"|'([^'\n]{1,200})'")


def shortcut_turns(task: TaskBundle, *, constant: str = "", tool: str = "") -> dict[str, str]:
    """First turn of each shortcut policy that can play the task, by its name.

    `frequent_tool` calls the suite's most frequent tool, or the task's first one, with arguments guessed from the
    prompt; where the call is not the answer itself, its output is answered (see rollout.probe).
    """
    asked = _last_question(task)
    turns = {"empty": "", "refusal": REFUSAL, "copy_prompt": asked}
    if constant:
        turns["constant"] = constant
    if task.tools:
        chosen = next((spec for spec in task.tools if spec.name == tool), task.tools[0])
        turns["frequent_tool"] = write_call(chosen.name, guess_arguments(chosen, asked), task.tool_format)
    return turns


def stub_episodes(task: TaskBundle, reference: FinishedEpisode) -> dict[str, FinishedEpisode]:
    """By what they do: the reference's episode with a stub for each Python file of its own, and for its answer.

    None where the reference hands in no Python code.
    """
    brought = {path: text.encode() for path, text in task.contract.files.items()}
    own = [p for p, data in reference.files.items() if p.endswith(".py") and brought.get(p) != data]
    blocks = _FENCED.findall(reference.answer)
    functions = _functions(blocks[-1] if blocks else reference.answer)
    episodes = {}
    stubs = CODE_STUBS | (SCRIPT_STUBS if task.verifier.kind is VerifierKind.SCRIPT else {})
    stubs |= PARTIAL_STUBS if gives_parts(task.verifier) else {}
    for name, (code, function) in stubs.items() if own or functions else ():
        named = "".join("\n" + function.format(name=name) for name in functions) if function else ""
        answer = f"```python{named}\n{code}```" if functions else reference.answer
        files = reference.files | dict.fromkeys(own, code.encode())
        episodes[name] = replace(reference, answer=answer, files=files)
    return episodes


def gives_parts(spec: VerifierSpec) -> bool:
    """Whether a fail may earn something, as far as the verifier's settings say; what a program says is not known."""
    if spec.kind is VerifierKind.COMPOSITE:
        return bool(spec.config.get("partial")) or any(gives_parts(part.verifier) for part in spec.parts)
    return spec.kind is VerifierKind.PROGRAM or bool(spec.config.get("partial"))


def _functions(code: str) -> list[str]:
    """Names that a Python text defines as functions or classes; none where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def guess_arguments(tool: ToolSpec, asked: str) -> dict[str, Any]:
    """Required arguments by their type: numbers and quoted texts of the prompt in their order, else a first guess."""
    numbers = iter(_NUMBER.findall(asked))
    texts = iter([first or second for first, second in _QUOTED.findall(asked)] or asked.split()[-1:])
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", list(properties))
    return {name: _guess(properties.get(name, {}), numbers, texts) for name in required}


def write_call(name: str, arguments: Mapping[str, Any], tool_format: str) -> str:
    """A call as the task wants it written."""
    if tool_format == "json":
        return f"<tool_call>{json.dumps({'name': name, 'arguments': dict(arguments)})}</tool_call>"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _guess(schema: Any, numbers: Iterator[str], texts: Iterator[str]) -> Any:
    schema = schema if isinstance(schema, dict) else {}
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type"):
        case "integer":
            return int(float(next(numbers, "1")))
        case "number" | "float":
            return float(next(numbers, "1"))
        case "boolean":
            return True
        case "array":
            return [_guess(schema.get("items", {}), numbers, texts)]
        case "object" | "dict":
            return {}
    return next(texts, "")


def _last_question(task: TaskBundle) -> str:
    return next((message.content for message in reversed(task.prompt) if message.role == "user"), "")
