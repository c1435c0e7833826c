"""Reads one assistant turn: an answer, a tool call, or a call that went wrong. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.verifiers.calls import CallSyntaxError, ParsedCall, parse_calls

_OPENING = re.compile(r"\A(?:```[A-Za-z_]*\s*)?\[?\s*([A-Za-z_][\w.]*)\s*\(")
_WHOLE = re.compile(r"\A[A-Za-z_][\w.]*\s*\(.*\)\Z", re.DOTALL)


class TurnKind(StrEnum):
    """What an assistant turn is to the episode."""

    ANSWER = "answer"
    CALL = "call"
    MALFORMED = "malformed"


@dataclass(frozen=True)
class AssistantTurn:
    """`call` is set exactly for CALL, `error` exactly for MALFORMED; `name` is the tool a malformed call meant."""

    kind: TurnKind
    call: ParsedCall | None = None
    name: str = ""
    error: str = ""


def read_turn(text: str, tools: Sequence[ToolSpec], tool_format: str) -> AssistantTurn:
    """Classify a turn. A turn that opens like a call but cannot be parsed is malformed, never an answer."""
    if not tools:
        return AssistantTurn(TurnKind.ANSWER)
    try:
        calls = parse_calls(text, tool_format)
    except CallSyntaxError as error:
        name = _meant_call(text, tools, tool_format)
        if name is None:
            return AssistantTurn(TurnKind.ANSWER)
        return AssistantTurn(TurnKind.MALFORMED, name=name, error=str(error))
    if len(calls) > 1:
        return AssistantTurn(
            TurnKind.MALFORMED, name=calls[0].name, error=f"{len(calls)} calls in one turn, expected one"
        )
    return AssistantTurn(TurnKind.CALL, call=calls[0], name=calls[0].name)


def _meant_call(text: str, tools: Sequence[ToolSpec], tool_format: str) -> str | None:
    """Name of the tool an unparsable text was about, None when it does not look like a call."""
    stripped = text.strip()
    if tool_format == "json":
        if "<tool_call>" in stripped or (stripped.startswith(("{", "[{")) and '"name"' in stripped):
            return next((tool.name for tool in tools if f'"{tool.name}"' in stripped), "")
        return None
    opening = _OPENING.match(stripped)
    if opening is None:
        return None
    name = opening.group(1)
    return name if name in {tool.name for tool in tools} or _WHOLE.match(stripped) else None
