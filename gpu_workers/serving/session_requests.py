"""OpenAI's chat request as the session server takes it: typed, and refused by name where it cannot be met."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.serving.errors import ApiError
from gpu_workers.serving.forced_calls import check_choice, forced_call, is_forced
from gpu_workers.serving.response_format import ResponseFormat, response_constraint
from gpu_workers.sessions.formats import ToolFormat
from gpu_workers.sessions.records import CallMade, Said
from gpu_workers.sessions.table import SessionSpec
from gpu_workers.sessions.turns import TurnOptions

MAX_CHOICES = 16
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
_Stop = Annotated[str, Meta(min_length=1)]


class _Function(msgspec.Struct):
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


class _Part(msgspec.Struct):
    type: Literal["text"]
    text: str


class _CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    id: str
    function: _CalledFunction
    type: Literal["function"] = "function"


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    """The request. What it lacks is ignored: it changes neither tokens nor log-probs."""

    model: str
    messages: Annotated[list[_Message], Meta(min_length=1)]
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    # Taken only where they change nothing.
    top_logprobs: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    modalities: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "function_call": ("none",),
}
_LIMITED = (
    "top_logprobs", "frequency_penalty", "presence_penalty", "logit_bias", "modalities", "functions", "function_call",
    "audio", "prediction", "web_search_options",
)  # fmt: skip
_decoder = msgspec.json.Decoder(ChatBody)
_spec_decoder = msgspec.json.Decoder(SessionSpec)


def parse_chat(data: bytes) -> ChatBody:
    """Raises ApiError 400 naming the parameter."""
    body: ChatBody = _decode(_decoder, data)
    for name in _LIMITED:
        value = getattr(body, name)
        if value and value not in _NEUTRAL.get(name, ()):
            raise ApiError(400, "unsupported_parameter", f"{name} is not supported by sessions", param=name)
    names = {tool.function.name for tool in body.tools or ()}
    if len(names) < len(body.tools or ()):
        raise ApiError(400, "invalid_value", "two tools have the same name", param="tools")
    for index, tool in enumerate(body.tools or ()):
        if not isinstance((tool.function.parameters or {}).get("properties", {}), dict):
            where = f"tools.{index}.function.parameters.properties"
            raise ApiError(400, "invalid_value", f"{where} must be an object", param=where)
    if is_forced(body.tool_choice):
        check_choice(body.tool_choice, {tool.function.name: tool.function.parameters for tool in body.tools or ()})
    if body.response_format is not None and body.response_format.type != "text":
        response_constraint(body.response_format)
        if body.tools and body.tool_choice != "none":
            message = "an answer under a schema cannot be a tool call: leave tools out, or say tool_choice none"
            raise ApiError(400, "unsupported_parameter", message, param="response_format")
    return body


def parse_spec(data: bytes) -> SessionSpec:
    """The body of POST /sessions; empty means all defaults. Raises ApiError 400 naming the field."""
    spec: SessionSpec = _decode(_spec_decoder, data or b"{}")
    return spec


def decode_as(data: bytes, kind: type[Any]) -> Any:
    """A small body. Raises ApiError 400 naming the field."""
    return _decode(msgspec.json.Decoder(kind), data)


def said_messages(body: ChatBody, start: int = 0) -> list[Said]:
    """From number `start` on. Raises ApiError 400 naming the message."""
    return [_said(index, message) for index, message in enumerate(body.messages[start:], start=start)]


def num_characters(body: ChatBody) -> int:
    """Of all that the chat template gets."""
    said = sum(len(part) for message in body.messages for part in _texts(message))
    return said + (len(msgspec.json.encode(body.tools)) if body.tools else 0)


def shown_tools(body: ChatBody) -> tuple[dict[str, Any], ...]:
    """The tools as the chat template gets them."""
    return tuple(
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in body.tools or ()
    )


def turn_options(body: ChatBody, spec: SessionSpec, form: ToolFormat, seed: int, room: int) -> TurnOptions:
    """What is sampled: the session's own settings win over the agent's. `room`: tokens left in the context.

    Raises ApiError 400 where a call is forced that no grammar of the session's format can hold to.
    """
    asked = body.max_completion_tokens or body.max_tokens or spec.max_new_tokens
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    shown = [] if body.tool_choice == "none" else shown_tools(body)
    tools = tuple(ToolSpec(name=t["function"]["name"], parameters=t["function"]["parameters"]) for t in shown)
    return TurnOptions(
        sampling=Sampling(
            max_new_tokens=min(asked, spec.max_new_tokens, room),
            temperature=_first(spec.temperature, body.temperature, 1.0),
            top_p=_first(spec.top_p, body.top_p, 1.0),
            seed=seed if body.seed is None else body.seed,
        ),
        num_choices=body.n or 1,
        stop=stop,
        tools=tools,
        parallel_calls=body.parallel_tool_calls is not False,
        constraint=_constraint(body, form, tools),
    )


def _constraint(body: ChatBody, form: ToolFormat, tools: Sequence[ToolSpec]) -> Constraint | None:
    if is_forced(body.tool_choice):
        return forced_call(body.tool_choice, form, tools, parallel=body.parallel_tool_calls is not False)
    return response_constraint(body.response_format)


def _said(index: int, message: _Message) -> Said:
    where = f"messages.{index}"
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    if content is None and not (message.role == "assistant" and message.tool_calls):
        if message.role != "assistant":
            raise ApiError(400, "invalid_value", "content must be text", param=f"{where}.content")
        content = ""
    if message.tool_calls and message.role != "assistant":
        raise ApiError(400, "invalid_value", "only an assistant message calls tools", param=f"{where}.tool_calls")
    if (message.role == "tool") != (message.tool_call_id is not None):
        raise ApiError(
            400, "invalid_value", "a tool message, and no other, has a tool_call_id", param=f"{where}.tool_call_id"
        )
    calls = tuple(CallMade(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or ())
    role = "system" if message.role == "developer" else message.role
    return Said(role, content or "", calls, message.tool_call_id or "")


def _texts(message: _Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    else:
        yield from (part.text for part in message.content or ())
    yield from (call.function.arguments for call in message.tool_calls or ())


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _decode(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        found = _PATH.match(str(error))
        assert found is not None
        path = (found["path"] or "").replace("[", ".").replace("]", "").replace("...", "")
        missing = re.search(r"missing required field `(\w+)`", str(error))
        if missing:
            path = f"{path}.{missing[1]}".lstrip(".")
            raise ApiError(400, "missing_parameter", f"{path} is missing", param=path) from error
        raise ApiError(400, "invalid_value", f"{path or 'the body'}: {found['what']}", param=path or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from error
