"""A turn of a session as OpenAI's answer: whole, or as server-sent events."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from gpu_workers.serving.session_requests import ChatBody
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.records import Said
from gpu_workers.sessions.turns import RunningTurn, Sample

_FINISH = {"stop": "stop", "length": "length", "abort": "stop"}


class Answer:
    """Of one turn; ids and time are fixed when it begins."""

    def __init__(self, body: ChatBody, turn: RunningTurn, session_id: str, template: ChatTemplate) -> None:
        self._body, self._turn, self._template = body, turn, template
        self._num_shown = [0] * len(turn.samples)  # tokens whose log-probs were sent
        self._head = {
            "id": f"chatcmpl-{session_id}-{turn.number}",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": f"{turn.policy.adapter or 'base'}@{turn.policy.version}",
            "session": {
                "id": session_id,
                "turn": turn.number,
                "reused_tokens": turn.place.num_reused,
                "constrained": turn.options.constraint is not None,
            },
        }

    def whole(self) -> bytes:
        """JSON of the finished turn."""
        choices = [self._choice(sample) for sample in self._turn.samples]
        body = {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage()}
        return msgspec.json.encode(body)

    async def events(self) -> AsyncIterator[bytes]:
        """All but the last ones, which may go only when the turn is on disk: see `closing`."""
        samples = self._turn.samples
        texts = [""] * len(samples)
        for sample in samples:
            yield self._chunk(sample, {"role": "assistant", "content": ""})
        async for sample in self._turn.stream():
            text = self._turn.plain_text(sample)
            if len(text) > len(texts[sample.index]):
                delta, texts[sample.index] = text[len(texts[sample.index]) :], text
                yield self._chunk(sample, {"content": delta})

    def closing(self) -> list[bytes]:
        """Tool calls, finish reasons, usage, the end."""
        events = []
        for sample in self._turn.samples:
            said, _ = self._turn.reply(sample)
            if said.calls:
                calls = [{"index": index, **call} for index, call in enumerate(_calls(said))]
                events.append(self._chunk(sample, {"tool_calls": calls}))
            events.append(self._chunk(sample, {}, _finish(sample, said)))
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            chunk = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()}
            events.append(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        return [*events, b"data: [DONE]\n\n"]

    def _choice(self, sample: Sample) -> dict[str, Any]:
        said, _ = self._turn.reply(sample)
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
        if said.calls:
            message |= {"content": said.content or None, "tool_calls": _calls(said)}
        return {
            "index": sample.index,
            "message": message,
            "logprobs": self._logprobs(sample, 0),
            "finish_reason": _finish(sample, said),
        }

    def _chunk(self, sample: Sample, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        start, self._num_shown[sample.index] = self._num_shown[sample.index], len(sample.ids)
        choice = {
            "index": sample.index,
            "delta": delta,
            "logprobs": self._logprobs(sample, start),
            "finish_reason": finish_reason,
        }
        body = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    def _logprobs(self, sample: Sample, start: int) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        texts = self._template.token_texts(sample.ids[start:])
        rows = zip(texts, sample.logprobs[start:], strict=True)
        content = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in rows]
        return {"content": content, "refusal": None}

    def _usage(self) -> dict[str, Any]:
        num_prompt = len(self._turn.place.ids)
        num_sampled = sum(len(sample.ids) for sample in self._turn.samples)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_sampled,
            "total_tokens": num_prompt + num_sampled,
            "prompt_tokens_details": {"cached_tokens": max(s.cached_tokens for s in self._turn.samples)},
        }


def _calls(said: Said) -> Sequence[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in said.calls
    ]


def _finish(sample: Sample, said: Said) -> str:
    return "tool_calls" if said.calls else _FINISH.get(sample.finish_reason, "stop")
