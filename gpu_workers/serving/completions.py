"""One chat completion: the request checked, rendered to tokens, answered whole or as a stream."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, RolloutEngine
from gpu_workers.contracts.tasks import Message
from gpu_workers.serving.control import ChannelBinding
from gpu_workers.serving.errors import ApiError
from gpu_workers.serving.response_format import ResponseFormat, response_constraint
from gpu_workers.sessions.chat import ChatTemplate

DEFAULT_MAX_TOKENS = 256
UNFINISHED = "\ufffd"  # what a cut multi-byte character decodes to
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_UNSUPPORTED = ("tools", "functions", "logit_bias", "audio", "modalities")


@dataclass(frozen=True)
class ChatRequest:
    """The supported part of OpenAI's request."""

    model: str
    messages: list[Message]
    sampling: Sampling
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    constraint: Constraint | None = None


def parse_request(body: Any) -> ChatRequest:
    """Check a request. Raises ApiError naming the parameter."""
    if not isinstance(body, dict):
        raise ApiError(400, "invalid_body", "the body must be a JSON object")
    for name in _UNSUPPORTED:
        if body.get(name):
            raise ApiError(400, "unsupported_parameter", f"{name} is not supported by this endpoint", param=name)
    if body.get("n") not in (None, 1):
        raise ApiError(400, "unsupported_parameter", "only n = 1 is supported", param="n")
    if not isinstance(body.get("model"), str):
        raise ApiError(400, "missing_parameter", "model is needed: <project>/<channel>", param="model")
    options = body.get("stream_options")
    return ChatRequest(
        model=body["model"],
        messages=_messages(body.get("messages")),
        sampling=Sampling(
            max_new_tokens=_max_tokens(body),
            temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
            top_p=_number(body, "top_p", 1.0, 0.0, 1.0),
            seed=int(_number(body, "seed", secrets.randbits(31), -(2**63), 2**63)),
        ),
        stop=_stop(body.get("stop")),
        stream=bool(body.get("stream")),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        constraint=_constraint(body.get("response_format")),
    )


class Completion:
    """One completion of one binding; ids and time are fixed when it starts."""

    def __init__(
        self, request: ChatRequest, binding: ChannelBinding, engine: RolloutEngine, template: ChatTemplate
    ) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._request = request
        self._binding = binding
        self._engine = engine
        self._template = template
        num_said = sum(len(message.content) for message in request.messages)
        if not template.can_fit(num_said):
            message = f"the messages have {num_said} characters, the model's context {template.context_limit} tokens"
            raise ApiError(400, "context_length_exceeded", message, param="messages")
        self._prompt = template.render_prompt(request.messages)
        room = template.context_limit - len(self._prompt)
        if room < 1:
            message = f"the messages have {len(self._prompt)} tokens, the model's context {template.context_limit}"
            raise ApiError(400, "context_length_exceeded", message, param="messages")
        self._max_new_tokens = min(request.sampling.max_new_tokens, room)

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        result = await self._engine.generate(self._generate_request())
        text = self._cut(self._template.decode(result.output_ids))
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": None,
            "finish_reason": _finish(result),
        }
        return self._envelope("chat.completion", [choice]) | {"usage": self._usage(result)}

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events; the engine's request ends when the client goes."""
        yield self._event({"role": "assistant", "content": ""}, None)
        sent, result = "", None
        try:
            async for result in self._engine.stream(self._generate_request()):
                text = self._cut(self._template.decode(result.output_ids))
                if not _done(result):
                    text = self._certain(text)
                if len(text) > len(sent):
                    yield self._event({"content": text[len(sent) :]}, None)
                    sent = text
        finally:
            if result is None or not _done(result):
                # Shielded: this also runs when the client has gone and the response's task is being cancelled.
                await asyncio.shield(asyncio.ensure_future(self._engine.abort(self.id)))
        if result is not None:
            yield self._event({}, _finish(result))
            if self._request.include_usage:
                chunk = self._envelope("chat.completion.chunk", []) | {"usage": self._usage(result)}
                yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    def _generate_request(self) -> GenerateRequest:
        sampling = self._request.sampling
        return GenerateRequest(
            input_ids=self._prompt,
            sampling=Sampling(
                max_new_tokens=self._max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                seed=sampling.seed,
            ),
            adapter=self._binding.adapter,
            request_id=self.id,
            stop=self._request.stop,
            stop_token_ids=(self._template.eos_id,),
            constraint=self._request.constraint,
        )

    def _cut(self, text: str) -> str:
        ends = [index for stop in self._request.stop if (index := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text

    def _certain(self, text: str) -> str:
        """Without what may be the beginning of a stop text, or is half a character."""
        held = max((len(stop) for stop in self._request.stop), default=1) - 1
        return text[: max(len(text) - held, 0)].rstrip(UNFINISHED)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "system_fingerprint": f"{self._binding.policy}@{self._binding.epoch}",
            "choices": choices,
        }

    def _event(self, delta: dict[str, str], finish_reason: str | None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return f"data: {json.dumps(self._envelope('chat.completion.chunk', [choice]))}\n\n"

    def _usage(self, result: GenerateResult) -> dict[str, Any]:
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": len(result.output_ids),
            "total_tokens": len(self._prompt) + len(result.output_ids),
            "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        }


def _done(result: GenerateResult) -> bool:
    return bool(result.finish_reason)


def _finish(result: GenerateResult) -> str:
    return "length" if result.finish_reason == "length" else "stop"


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ApiError(400, "missing_parameter", "messages must be a non-empty list", param="messages")
    return [_message(index, item) for index, item in enumerate(value)]


def _message(index: int, item: Any) -> Message:
    where = f"messages.{index}"
    if not isinstance(item, dict) or not isinstance(item.get("role"), str) or item["role"] not in _ROLES:
        raise ApiError(400, "invalid_value", f"role must be one of {', '.join(sorted(_ROLES))}", param=f"{where}.role")
    role = "system" if item["role"] == "developer" else str(item["role"])
    content = item.get("content")
    if isinstance(content, list):
        content = _join_parts(content, where)
    if not isinstance(content, str):
        raise ApiError(400, "invalid_value", "content must be text", param=f"{where}.content")
    return Message(role=role, content=content)


def _join_parts(parts: Sequence[Any], where: str) -> str:
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "invalid_value", "only text parts are supported", param=f"{where}.content")
    return "".join(str(text) for text in texts)


def _max_tokens(body: dict[str, Any]) -> int:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return int(_number(body, name, DEFAULT_MAX_TOKENS, 1, 1_000_000))


def _number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ApiError(400, "invalid_value", f"{name} must be a number between {low:g} and {high:g}", param=name)
    return value


def _constraint(value: Any) -> Constraint | None:
    try:
        return response_constraint(msgspec.convert(value, ResponseFormat | None))
    except msgspec.ValidationError as error:
        raise ApiError(400, "invalid_value", f"response_format: {error}", param="response_format") from error


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > 4 or not all(isinstance(s, str) and s for s in stops):
        raise ApiError(400, "invalid_value", "stop must be a text or up to four texts", param="stop")
    return tuple(stops)
