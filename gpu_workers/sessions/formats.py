"""How models write tool calls, read and written as text. Pure; nothing here ever touches token ids."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_workers.verifiers.calls import (
    CallSyntaxError,
    ParsedCall,
    bind_arguments,
    json_call,
    load_json,
    parse_json_calls,
    parse_python_calls,
)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MISTRAL, _LLAMA = "[TOOL_CALLS]", "<|python_tag|>"
_MISTRAL_NAMED = re.compile(r"([A-Za-z_][\w.-]*)(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*(?=\{)")
_TAGGED = re.compile(rf"{_OPEN}.*?{_CLOSE}", re.DOTALL)
_PYTHON_MAYBE = re.compile(r"\s*(?:`{0,3}|```[A-Za-z_]*\s*)\[?\s*(?:[A-Za-z_][\w.]*)?\s*\Z")
_PYTHON_OPENING = re.compile(r"\s*(?:```[A-Za-z_]*\s*)?\[?\s*([A-Za-z_][\w.]*)\s*\(")


class ToolFormat(StrEnum):
    """A convention of a model family."""

    HERMES = "hermes"  # <tool_call>{"name", "arguments"}</tool_call>, words around them; also Qwen's
    LLAMA = "llama"  # {"name", "parameters"}, after <|python_tag|> or bare, several with ; between
    MISTRAL = "mistral"  # [TOOL_CALLS] [{"name", "arguments"}], or [TOOL_CALLS]name{…}
    PYTHON = "python"  # f(a=1), several on lines of their own or in a list
    JSON = "json"  # an object or a list of them, bare or in tags


@dataclass(frozen=True)
class FoundCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """`content` is the text beside the calls. `error`: it opens like a call but is none, so all of it is content."""

    content: str
    calls: tuple[FoundCall, ...] = ()
    error: str = ""


def read_calls(text: str, form: ToolFormat, parameters: Mapping[str, Mapping[str, Any]]) -> Reading:
    """Calls of a finished turn; `parameters`: tool name to JSON schema, for the names of positional arguments."""
    start = plain_length(text, form)
    if start == len(text):
        return Reading(text)
    try:
        found, content = _READERS[form](text)
        calls = [FoundCall(call.name, bind_arguments(call, parameters.get(call.name, {}))) for call in found]
    except CallSyntaxError as error:
        return Reading(text, error=str(error) if _was_meant(text, form, parameters) else "")
    return Reading(content, tuple(calls))


def plain_length(text: str, form: ToolFormat) -> int:
    """How many characters at the start belong to no call, whatever follows: what a stream may send already."""
    stripped = text.lstrip()
    match form:
        case ToolFormat.HERMES:
            return _before(text, _OPEN)
        case ToolFormat.MISTRAL:
            return _before(text, _MISTRAL)
        case ToolFormat.LLAMA:
            return 0 if stripped[:1] in ("", "{") and text else _before(text, _LLAMA)
        case ToolFormat.JSON:
            return 0 if stripped[:1] in ("", "{", "[", "`") and text else _before(text, _OPEN)
        case ToolFormat.PYTHON:
            maybe = _PYTHON_MAYBE.match(text) or _PYTHON_OPENING.match(text)
            return 0 if maybe and text else len(text)


def write_calls(calls: Sequence[FoundCall], form: ToolFormat) -> tuple[str, str]:
    """Calls as such a model would write them: a marker that may be a special token, and text."""
    plain = [{"name": call.name, "arguments": call.arguments} for call in calls]
    match form:
        case ToolFormat.HERMES | ToolFormat.JSON:
            return "", "\n".join(f"{_OPEN}\n{_dump(item)}\n{_CLOSE}" for item in plain)
        case ToolFormat.MISTRAL:
            return _MISTRAL, f" {_dump(plain)}"
        case ToolFormat.LLAMA:
            return "", "; ".join(_dump({"name": c.name, "parameters": c.arguments}) for c in calls)
        case ToolFormat.PYTHON:
            return "", "\n".join(_python(call) for call in calls)


def tool_instructions(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    """For a chat template that writes no tools: what to call and how, for the system message."""
    marker, example = write_calls([FoundCall("name", {"argument": "value"})], form)
    listing = "\n".join(_dump(tool["function"]) for tool in tools)
    return (
        f"You can call these functions, described by JSON schemas:\n{listing}\n"
        f"To call one, write nothing but\n{marker}{example}"
    )


def guess_format(template_source: str) -> ToolFormat:
    """The format that a chat template speaks of; Hermes where it speaks of none."""
    marks = {_OPEN: ToolFormat.HERMES, _MISTRAL: ToolFormat.MISTRAL, "python_tag": ToolFormat.LLAMA}
    return next((form for mark, form in marks.items() if mark in template_source), ToolFormat.HERMES)


def _was_meant(text: str, form: ToolFormat, names: Container[str]) -> bool:
    """Whether a finished turn was meant as a call, so that it is worth saying why it is none."""
    if form is ToolFormat.PYTHON:
        opening = _PYTHON_OPENING.match(text)
        return opening is not None and (opening.group(1) in names or text.rstrip().endswith(")"))
    rest = text[plain_length(text, form) :].lstrip()
    return rest.startswith((_OPEN[:6], _MISTRAL[:6], _LLAMA[:6])) or '"name"' in rest


def _read_tagged(text: str) -> tuple[list[ParsedCall], str]:
    calls = parse_json_calls(text)
    before, tag, rest = text.partition(_OPEN)
    if not tag:  # bare JSON
        return calls, ""
    after = _TAGGED.sub("", tag + rest).strip()
    return calls, "\n".join(part for part in (before.rstrip(), after) if part)


def _read_mistral(text: str) -> tuple[list[ParsedCall], str]:
    before, _, rest = text.partition(_MISTRAL)
    calls: list[ParsedCall] = []
    for part in rest.split(_MISTRAL):
        named = _MISTRAL_NAMED.match(part.strip())
        if named:
            calls.append(json_call({"name": named.group(1), "arguments": load_json(part.strip()[named.end() :])}))
            continue
        value = load_json(part.strip())
        items = value if isinstance(value, list) else [value]
        calls += [json_call(_without_id(item)) for item in items]
    if not calls:
        raise CallSyntaxError("no function call after [TOOL_CALLS]")
    return calls, before.rstrip()


def _read_llama(text: str) -> tuple[list[ParsedCall], str]:
    before, mark, rest = text.partition(_LLAMA)
    calls = []
    for source in _split_objects(rest if mark else text):
        item = load_json(source)
        if isinstance(item, dict) and "parameters" in item and "arguments" not in item:
            item["arguments"] = item.pop("parameters")
        if isinstance(item, dict) and item.get("type") == "function":
            del item["type"]
        calls.append(json_call(item))
    return calls, before.rstrip() if mark else ""


def _read_python(text: str) -> tuple[list[ParsedCall], str]:
    return parse_python_calls(text), ""


_READERS = {
    ToolFormat.HERMES: _read_tagged,
    ToolFormat.JSON: _read_tagged,
    ToolFormat.MISTRAL: _read_mistral,
    ToolFormat.LLAMA: _read_llama,
    ToolFormat.PYTHON: _read_python,
}


def _split_objects(text: str) -> list[str]:
    """JSON values one after the other, with semicolons or white space between."""
    decoder, at, found = json.JSONDecoder(), 0, list[str]()
    text = text.strip()
    while at < len(text):
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise CallSyntaxError(f"not JSON: {error or type(error).__name__}") from error
        found.append(text[at:end])
        at = end + len(text[end:]) - len(text[end:].lstrip("; \t\r\n"))
    return found


def _without_id(item: Any) -> Any:
    return {key: value for key, value in item.items() if key != "id"} if isinstance(item, dict) else item


def _before(text: str, mark: str) -> int:
    """Where `mark` begins, also when only a part of it is there yet."""
    found = text.find(mark)
    if found >= 0:
        return found
    part = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
    return len(text) - part


def _python(call: FoundCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
