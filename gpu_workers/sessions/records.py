"""What is kept of a session's turns, in memory and on disk: messages as the agent has them, and their exact tokens."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from gpu_workers.contracts.messages import PolicyRef


class CallMade(msgspec.Struct, frozen=True, array_like=True):
    """A tool call as the agent has it; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class Said(msgspec.Struct, frozen=True, array_like=True):
    """One message as the agent sends it or was answered."""

    role: str
    content: str = ""
    calls: tuple[CallMade, ...] = ()
    call_id: str = ""  # of a tool result

    def key(self) -> tuple[Any, ...]:
        """Equal for messages that are the same to an agent: white space at the ends and JSON style do not count."""
        if self.role != "assistant":
            return self.role, self.content, self.call_id
        calls = tuple((call.id, call.name, _canonical(call.arguments)) for call in self.calls)
        return "assistant", self.content.strip(), calls


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Observed tokens: messages up to a generation prompt, or an assistant turn that the agent wrote itself."""

    said: tuple[Said, ...]
    ids: list[int]
    tools: str = ""  # JSON of the functions, in the first piece of a conversation


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """One sampled turn. `spans` are [version, start, stop) over its ids."""

    ids: list[int]
    logprobs: list[float]
    spans: list[tuple[int, int, int]]
    finish_reason: str  # stop | length | abort
    reply: Said
    text: str  # special tokens removed
    call_error: str = ""  # why what opens like a call is none
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0
    constrained: bool = False  # the log-probs are not the policy's own: its tokens are not trained on


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """What one request added: observed pieces below node `parent` (-1: a new conversation), then its choices."""

    number: int  # order of arrival in the session
    parent: int
    pieces: list[Piece]
    choices: list[Choice]
    policy: PolicyRef
    at: float = 0.0  # unix seconds


def spans_of(versions: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of equal versions as [version, start, stop)."""
    spans: list[tuple[int, int, int]] = []
    for index, version in enumerate(versions):
        if spans and spans[-1][0] == version:
            spans[-1] = (version, spans[-1][1], index + 1)
        else:
            spans.append((version, index, index + 1))
    return spans


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
