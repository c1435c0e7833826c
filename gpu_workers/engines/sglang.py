"""Client of one engine over SGLang's HTTP API; the embedded engine speaks the same."""

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, VersionSpan, WorkerError
from gpu_workers.engines.collective import CollectiveCalls
from gpu_workers.engines.http import (
    CONNECT_SECONDS,
    READ_SECONDS,
    EngineError,
    EngineHttp,
    Repeat,
    reason,
    refused,
)
from gpu_workers.engines.versions import check_versions

__all__ = ["EngineError", "SGLangEngine"]

REQUEST_SECONDS = 600.0  # a queue may be long; callers put their own, shorter deadline around it
MAX_OPEN_REQUESTS = 256  # of one client; more wait here, where leaving costs the engine nothing
_HEALTH_SECONDS = 25.0  # SGLang gives its own check 20


class SGLangEngine(CollectiveCalls):
    """RolloutEngine over HTTP. A generation is sent again only where none can have begun."""

    def __init__(
        self, url: str, *, client: httpx.AsyncClient | None = None, max_open_requests: int = MAX_OPEN_REQUESTS
    ) -> None:
        self._http = EngineHttp(url, max_open=max_open_requests, client=client)
        self.url = self._http.url

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Raises EngineError. A cancelled call aborts the request on the engine.

        Waiting for a turn here counts as queueing, like waiting in the engine.
        """
        body = _body(request)
        async with self._http.slot() as waited:
            try:
                response = await self._http.call("POST", "/generate", body, seconds=REQUEST_SECONDS)
            except asyncio.CancelledError:
                await self._abort_quietly(body)
                raise
        return check_versions(_delayed(_result(self.url, _json(self.url, response.content)), waited), request)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        """Cumulative results; leaving the iteration early aborts the request."""
        body = _body(request) | {"stream": True}
        finished = False
        async with self._http.slot() as waited:
            try:
                async with self._http.stream("/generate", body, seconds=REQUEST_SECONDS) as lines:
                    async for line in lines:
                        if not line.startswith("data:"):
                            continue
                        data = line[5:].strip()
                        if data == "[DONE]":
                            finished = True
                            return
                        yield check_versions(_delayed(_result(self.url, _json(self.url, data)), waited), request)
                raise EngineError(f"engine {self.url}: the stream ended before the answer did")
            finally:
                if not finished:
                    await self._abort_quietly(body)

    async def abort(self, request_id: str) -> None:
        """Unknown ids are no error: the request may have just ended."""
        await self._http.call("POST", "/abort_request", {"rid": _rid(request_id)}, repeat=Repeat.ALWAYS)

    async def pause(self, mode: str = "abort") -> None:
        await self._http.call("POST", "/pause_generation", {"mode": mode}, repeat=Repeat.ALWAYS)

    async def resume(self) -> None:
        await self._http.call("POST", "/continue_generation", {}, repeat=Repeat.ALWAYS)

    async def flush_cache(self) -> None:
        """Raises EngineError (status 400) while requests run."""
        await self._http.call("POST", "/flush_cache", {}, repeat=Repeat.ALWAYS)

    async def info(self) -> EngineInfo:
        """What the engine serves. Adapters are those of /v1/models beyond the base."""
        model, listed = await self._read("/model_info"), await self._read("/v1/models")
        adapters = tuple(row["id"] for row in listed.get("data", []) if row.get("parent"))
        return EngineInfo(
            model_path=str(model.get("model_path", "")),
            weight_version=str(model.get("weight_version", "")),
            adapters=adapters,
            raw=model,
        )

    async def healthy(self) -> bool:
        """Whether a token comes out; never raises."""
        return await self._http.healthy("/health", _HEALTH_SECONDS)

    async def load_adapter(self, name: str, path: str) -> None:
        """Raises EngineError with the engine's own reason."""
        await self._change("/load_lora_adapter", {"lora_name": name, "lora_path": path})

    async def unload_adapter(self, name: str) -> None:
        """Returns once the adapter's running requests have ended."""
        await self._change("/unload_lora_adapter", {"lora_name": name})

    async def stage_weights(self, path: str) -> bool:
        """Have other weights read beside generation, for an update soon. False where the engine cannot, as SGLang."""
        try:
            await self._change("/stage_weights", {"model_path": path})
        except EngineError as error:
            if error.status in (404, 405):
                return False
            raise
        return True

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        """Take other base weights from a folder the engine can read. A refusal leaves the old ones in force."""
        body = {"model_path": path, "weight_version": version, "flush_cache": flush_cache}
        await self._change("/update_weights_from_disk", body)

    async def weights_digest(self) -> str:
        """Of the base weights in the engine's memory, as it lays them out. Raises EngineError."""
        response = await self._http.call("POST", "/weights_checker", {"action": "checksum"}, repeat=Repeat.ALWAYS)
        answer = _json(self.url, response.content)
        if not answer.get("per_engine_checksum"):
            raise EngineError(f"engine {self.url} gives no checksum of its weights: {reason(answer)}", retryable=False)
        return str(answer["per_engine_checksum"])

    async def metrics(self) -> dict[str, float]:
        """Unlabelled view of /metrics: the sum over labels of each sample."""
        values: dict[str, float] = {}
        for sample in await self._samples():
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
        return values

    async def token_gaps(self) -> dict[float, float]:
        """Cumulative histogram of the gaps between tokens: upper bound in seconds -> count."""
        buckets: dict[float, float] = {}
        for sample in await self._samples():
            if sample.name == "sglang:inter_token_latency_seconds_bucket":
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
        return buckets

    async def close(self) -> None:
        await self._http.close()

    async def _samples(self) -> list[Sample]:
        response = await self._http.call("GET", "/metrics", repeat=Repeat.ALWAYS, seconds=READ_SECONDS)
        return [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]

    async def _read(self, path: str) -> Any:
        response = await self._http.call("GET", path, repeat=Repeat.ALWAYS, seconds=READ_SECONDS)
        return _json(self.url, response.content)

    async def _change(self, path: str, body: dict[str, Any], *, seconds: float = REQUEST_SECONDS) -> None:
        """A change that may wait for running requests. A lost answer is not asked for again: read back what holds."""
        answer = _json(self.url, (await self._http.call("POST", path, body, seconds=seconds)).content)
        if isinstance(answer, dict) and answer.get("success") is False:
            raise refused(self.url + path, reason(answer), 400)

    async def _abort_quietly(self, body: dict[str, Any]) -> None:
        """The engine may be the reason we leave: an abort that fails changes nothing."""
        with contextlib.suppress(WorkerError, TimeoutError):
            rid = {"rid": body["rid"]}
            await asyncio.wait_for(self._http.call("POST", "/abort_request", rid), CONNECT_SECONDS)


def _rid(request_id: str) -> str:
    """SGLang aborts every request whose id starts with the one given: with an end mark none is the start of another."""
    return f"{request_id}#"


def _body(request: GenerateRequest) -> dict[str, Any]:
    """Raises EngineError for what would end SGLang's scheduler, and with it everyone's requests."""
    if request.sampling.max_new_tokens < 1:
        raise EngineError(f"max_new_tokens is {request.sampling.max_new_tokens}", status=400, retryable=False)
    body: dict[str, Any] = {
        "input_ids": list(request.input_ids),
        "sampling_params": _sampling(request.sampling, request),
        "return_logprob": True,
        "rid": _rid(request.request_id or uuid.uuid4().hex),
    }
    if request.adapter:
        body["lora_path"] = request.adapter
    return body


def _sampling(sampling: Sampling, request: GenerateRequest) -> dict[str, Any]:
    params: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "sampling_seed": sampling.seed,
    }
    if request.stop:
        params["stop"] = list(request.stop)
    if request.stop_token_ids:
        params["stop_token_ids"] = list(request.stop_token_ids)
    if request.constraint is not None:
        params[request.constraint.kind] = request.constraint.text
    return params


def _json(url: str, data: bytes | str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise EngineError(f"engine {url} answered what is not JSON: {data[:200]!r}") from error


def _result(url: str, answer: Any) -> GenerateResult:
    """A stream has begun with 200: what is wrong with its request comes as an event."""
    try:
        return _read_result(url, answer)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise EngineError(f"engine {url} answers what is no generation ({what})", retryable=False) from error


def _read_result(url: str, answer: dict[str, Any]) -> GenerateResult:
    if "error" in answer:
        error = answer["error"]
        code = error.get("code") if isinstance(error, dict) else None
        raise refused(f"{url}/generate", reason(answer), code if isinstance(code, int) else 500)
    meta = answer["meta_info"]
    logprobs = [_logprob(row[0]) for row in meta.get("output_token_logprobs", [])]
    ids = [int(token) for token in answer["output_ids"]]
    if meta.get("output_token_logprobs") and len(logprobs) != len(ids):
        raise EngineError(f"the engine answered {len(ids)} tokens but {len(logprobs)} log-probs", retryable=False)
    finish = meta.get("finish_reason") or {"type": ""}
    if isinstance(code := finish.get("status_code"), int):  # how SGLang ends a stream that it should not have begun
        raise refused(f"{url}/generate", str(finish.get("message", "")), code)
    return GenerateResult(
        output_ids=ids,
        logprobs=logprobs,
        finish_reason=str(finish["type"]),
        spans=[VersionSpan(str(s["version"]), s["start"], s["end"]) for s in meta.get("weight_versions") or []],
        cached_tokens=int(meta.get("cached_tokens") or 0),
        engine_seconds=float(meta.get("e2e_latency") or 0.0),
        queue_seconds=float(meta.get("queue_time") or 0.0),
    )


def _logprob(value: float | None) -> float:
    """JSON has no word for what is no number: engines write null."""
    return math.nan if value is None else float(value)


def _delayed(result: GenerateResult, waited: float) -> GenerateResult:
    return replace(result, engine_seconds=result.engine_seconds + waited, queue_seconds=result.queue_seconds + waited)
