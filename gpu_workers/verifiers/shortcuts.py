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

# A module whose every function does the same, whatever it is asked; as a script it does that and prints what it gives.
_STUB = """
def _same(*args, **kwargs):
    {body}

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _same

if __name__ == "__main__":
    print(*(value for value in [_same()] if {printed}))
"""
_FIRST = "args[0] if args else next(iter(kwargs.values()), None)"
STUBS = {"None": "None", "nan": 'float("nan")', "inf": 'float("inf")'}
CONSTANTS = {
    "{}": "dict()", "[]": "[]", "()": "()", "an empty text": '""', "0": "0", "False": "False", "True": "True",
    "its first argument": _FIRST, "an empty object": 'type("Empty", (), dict())()',
}  # fmt: skip
# Exceptions that loops and runners of tests take for an order of their own.
ORDERS = ("StopIteration", "StopAsyncIteration", "GeneratorExit")


def _stub(body: str, *, printed: bool = True) -> tuple[str, str]:
    """A module, and how it defines one function."""
    return _STUB.format(body=body, printed=printed), f"def {{name}}(*args, **kwargs):\n    {body}\n"


# What is tried: its name -> (a module, how it defines a function). A check that believes an exit code passes the exits.
CODE_STUBS = {f"code that answers {name} whatever it is asked": _stub(f"return {value}")
              for name, value in STUBS.items()} | {
    "code that raises ValueError whatever it is asked": _stub('raise ValueError("invalid")'),
    "code that exits with 0 when it is imported": ("import sys\n\nsys.exit(0)\n", ""),
    "code that ends its process with 0 when it is imported": ("import os\n\nos._exit(0)\n", ""),
}  # fmt: skip
CONSTANT_STUBS = {f"code that answers {name} whatever it is asked": _stub(f"return {value}", printed=value != _FIRST)
                  for name, value in CONSTANTS.items()}  # fmt: skip
ORDER_STUBS = {f"code that raises {name} whatever it is asked": _stub(f"raise {name}") for name in ORDERS}
# A script's own pytest or unittest believes a test that skips itself.
SCRIPT_STUBS = {
    "code that skips the test whatever it is asked": _stub('raise __import__("unittest").SkipTest("later")'),
    "code that skips the test when it is imported": ('import unittest\n\nraise unittest.SkipTest("later")\n', ""),
}
EARNS_NOTHING = frozenset(
    name for name in CODE_STUBS | SCRIPT_STUBS | CONSTANT_STUBS | ORDER_STUBS if "nan" not in name and "inf" not in name
)
# Says so where a program executes it in its own process: of a candidate's process this module is no part.
IN_CHECK = "in_check"  # kind of deed, as evidence names it
PROBE = "code that tells when the check executes it in its own process"
_TELL = (
    '[m.tell() for m in [[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "_wrap_close"][0]'
    '.__init__.__globals__["sys"].modules.get("gpu_workers.verifiers.inside.program")] if m]'
)  # also where no built-in name is left to it
PROBE_STUBS = {PROBE: (_TELL + "\n" + _stub(_TELL)[0], _stub(_TELL)[1])}
_FENCED = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\n(.*?)```", re.DOTALL)
MAX_FIELDS = 12
ONE_FIELD = "the answer with one field of the reference's: "
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

    Where the reference hands in no Python code, the probe alone, in the place of its answer and its files.
    """
    brought = {path: text.encode() for path, text in task.contract.files.items()}
    handed_in = [path for path, data in reference.files.items() if brought.get(path) != data]
    own = [path for path in handed_in if path.endswith(".py")]
    blocks = _FENCED.findall(reference.answer)
    functions = _functions(blocks[-1] if blocks else reference.answer)
    episodes = {}
    stubs = CODE_STUBS | CONSTANT_STUBS
    stubs |= SCRIPT_STUBS if task.verifier.kind is VerifierKind.SCRIPT else {}
    stubs |= PROBE_STUBS if has_program(task.verifier) else {}
    stubs |= ORDER_STUBS if not _is_apart(task.verifier) else dict(list(ORDER_STUBS.items())[:1])
    for name, (code, function) in stubs.items() if own or functions else ():
        named = "".join("\n" + function.format(name=name) for name in functions) if function else ""
        answer = reference.answer
        if functions:  # in the form that the reference has
            answer = f"```python{named}\n{code}```" if blocks else f"{named}\n{code}".lstrip()
        files = reference.files | dict.fromkeys(own, code.encode())
        episodes[name] = replace(reference, answer=answer, files=files)
    if not episodes and has_program(task.verifier):
        files = reference.files | dict.fromkeys(handed_in, _TELL.encode())
        episodes[PROBE] = replace(reference, answer=_TELL, files=files)
    return episodes


def structure_episodes(reference: FinishedEpisode) -> dict[str, FinishedEpisode]:
    """By what they hand in: the reference's episode with less of its JSON answer. None where it is no JSON structure.

    Those named in `ONE_FIELD` may pass where one field is all that counts, but not with one field and with another.
    """
    blocks = _FENCED.findall(reference.answer)
    text = (blocks[-1] if blocks else reference.answer).strip()
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(whole, dict | list) or not whole:
        return {}
    empty: tuple[Any, ...] = ({}, [], {"": None}, None, "")
    less: dict[str, Any] = {f"the answer {json.dumps(value)}": value for value in empty}
    if isinstance(whole, dict) and len(whole) > 1:
        less |= {ONE_FIELD + repr(key): {key: value} for key, value in list(whole.items())[:MAX_FIELDS]}
    return {
        name: replace(reference, answer=reference.answer.replace(text, json.dumps(value)))
        for name, value in less.items() if value != whole
    }  # fmt: skip


def has_program(spec: VerifierSpec) -> bool:
    """Whether a program of the task's author judges, or a part of it."""
    return spec.kind is VerifierKind.PROGRAM or any(has_program(part.verifier) for part in spec.parts)


def _is_apart(spec: VerifierSpec) -> bool:
    """Whether the candidate's code runs behind the proxy, where no order crosses: one is tried to see that it is so."""
    return spec.kind is VerifierKind.TESTS and spec.config.get("isolation") != "shared"


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
