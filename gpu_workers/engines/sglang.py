"""Client of one engine over SGLang's HTTP API; the embedded engine speaks the same."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, VersionSpan, WorkerError

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 600.0  # a queue may be long; callers put their own, shorter deadline around it
_SAFE_TRIES = 3  # of calls that change nothing


class EngineError(WorkerError):
    """A failure of the engine; `status` is its HTTP status, 0 when it did not answer."""

    def __init__(self, message: str, *, status: int = 0, retryable: bool = True) -> None:
        super().__init__(Boundary.ENGINE, message, retryable=retryable)
        self.status = status


class SGLangEngine:
    """RolloutEngine over HTTP. Generation is never repeated by itself; reads are, when the connection fails."""

    def __init__(self, url: str, *, client: httpx.AsyncClient | None = None) -> None:
        self.url = url.rstrip("/")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
        self._client = client or httpx.AsyncClient(base_url=self.url, limits=limits, timeout=timeout)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """Raises EngineError. A cancelled call aborts the request on the engine."""
        body = _body(request)
        try:
            response = await self._call("POST", "/generate", body)
        except asyncio.CancelledError:
            await self._abort_quietly(body["rid"])
            raise
        return _result(response)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        """Cumulative results; leaving the iteration early aborts the request."""
        body = _body(request) | {"stream": True}
        finished = False
        try:
            async with self._client.stream("POST", "/generate", json=body) as response:
                if response.is_error:
                    await response.aread()
                    raise _refusal(self.url, "/generate", response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        finished = True
                        return
                    event = json.loads(data)
                    if "error" in event:
                        raise EngineError(f"engine {self.url}: {event['error'].get('message', event['error'])}")
                    yield _result(event)
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error
        finally:
            if not finished:
                await self._abort_quietly(body["rid"])

    async def abort(self, request_id: str) -> None:
        await self._call("POST", "/abort_request", {"rid": request_id})

    async def pause(self, mode: str = "abort") -> None:
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        await self._call("POST", "/continue_generation", {})

    async def flush_cache(self) -> None:
        """Raises EngineError (status 400) while requests run."""
        await self._call("POST", "/flush_cache", {})

    async def info(self) -> EngineInfo:
        """What the engine serves. Adapters are those of /v1/models beyond the base."""
        model = await self._call("GET", "/model_info")
        listed = await self._call("GET", "/v1/models")
        adapters = tuple(row["id"] for row in listed.get("data", []) if row.get("parent"))
        return EngineInfo(
            model_path=str(model.get("model_path", "")),
            weight_version=str(model.get("weight_version", "")),
            adapters=adapters,
            raw=model,
        )

    async def healthy(self) -> bool:
        try:
            return (await self._client.get("/health", timeout=CONNECT_SECONDS * 2)).is_success
        except httpx.HTTPError:
            return False

    async def load_adapter(self, name: str, path: str) -> None:
        """Raises EngineError with the engine's own reason."""
        _check_success(self.url, await self._call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": path}))

    async def unload_adapter(self, name: str) -> None:
        _check_success(self.url, await self._call("POST", "/unload_lora_adapter", {"lora_name": name}))

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
        await self._client.aclose()

    async def _samples(self) -> list[Sample]:
        try:
            response = await self._client.get("/metrics")
        except httpx.HTTPError as error:
            raise _unreachable(self.url, error) from error
        return [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        tries = _SAFE_TRIES if method == "GET" else 1
        for left in reversed(range(tries)):
            try:
                response = await self._client.request(method, path, json=body)
            except httpx.HTTPError as error:
                if left:
                    await asyncio.sleep(0.2)
                    continue
                raise _unreachable(self.url, error) from error
            if response.is_error:
                raise _refusal(self.url, path, response)
            with contextlib.suppress(ValueError):
                return response.json()
            return {}
        raise AssertionError("unreachable")

    async def _abort_quietly(self, request_id: str) -> None:
        """The engine may be the reason we leave: an abort that fails changes nothing."""
        with contextlib.suppress(WorkerError, httpx.HTTPError):
            await asyncio.wait_for(asyncio.shield(self.abort(request_id)), CONNECT_SECONDS)


def _body(request: GenerateRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "input_ids": list(request.input_ids),
        "sampling_params": _sampling(request.sampling, request),
        "return_logprob": True,
        "rid": request.request_id or uuid.uuid4().hex,
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
    return params


def _result(answer: dict[str, Any]) -> GenerateResult:
    meta = answer["meta_info"]
    logprobs = [float(row[0]) for row in meta.get("output_token_logprobs", [])]
    ids = [int(token) for token in answer["output_ids"]]
    if meta.get("output_token_logprobs") and len(logprobs) != len(ids):
        raise EngineError(f"the engine answered {len(ids)} tokens but {len(logprobs)} log-probs", retryable=False)
    finish = meta.get("finish_reason") or {"type": ""}
    return GenerateResult(
        output_ids=ids,
        logprobs=logprobs,
        finish_reason=str(finish["type"]),
        spans=[VersionSpan(str(s["version"]), s["start"], s["end"]) for s in meta.get("weight_versions") or []],
        cached_tokens=int(meta.get("cached_tokens") or 0),
        engine_seconds=float(meta.get("e2e_latency") or 0.0),
        queue_seconds=float(meta.get("queue_time") or 0.0),
    )


def _check_success(url: str, answer: Any) -> None:
    if isinstance(answer, dict) and answer.get("success") is False:
        raise EngineError(f"engine {url}: {answer.get('error_message') or answer.get('message')}", status=400)


def _refusal(url: str, path: str, response: httpx.Response) -> EngineError:
    try:
        body = response.json()
        error = body.get("error", body)
        message = error.get("message") if isinstance(error, dict) else error
        message = message or body.get("error_message") or body.get("message") or response.text
    except (ValueError, AttributeError):
        message = response.text
    retryable = response.status_code >= 500 or "adapter" in str(message).lower()
    return EngineError(f"engine {url}{path} refused: {message}", status=response.status_code, retryable=retryable)


def _unreachable(url: str, error: httpx.HTTPError) -> EngineError:
    return EngineError(f"engine {url} does not answer ({type(error).__name__}: {error}); is it running?")
