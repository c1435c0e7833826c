"""POST /generate: one prompt or many, whole answers or a stream of cumulative ones; a client that leaves aborts."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from gpu_workers.engines.embedded.control import bring_back_adapters
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.http import Json
from gpu_workers.engines.embedded.params import make_requests, read_generate
from gpu_workers.engines.embedded.request import Request, RequestError


def answer(engine: Engine, request: Request) -> dict[str, Any]:
    """The JSON object of one request, finished or not."""
    num_output = len(request.output_ids)
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": request.finish_reason,
        "prompt_tokens": len(request.input_ids),
        "completion_tokens": num_output,
        "cached_tokens": request.num_cached_tokens or 0,
        "weight_version": request.version_spans[-1]["version"]
        if request.version_spans
        else engine.model.weight_version,
        "weight_versions": request.version_spans,
        "num_retractions": request.num_retractions,
        "queue_time": max(request.started_at - request.created_at, 0.0) if request.started_at else 0.0,
        "e2e_latency": (request.finished_at or time.perf_counter()) - request.created_at,
    }
    if request.return_logprob:
        ids = request.output_ids[:num_output]
        meta["output_token_logprobs"] = [[p, t, None] for p, t in zip(request.output_logprobs, ids, strict=False)]
        meta["input_token_logprobs"] = _input_logprobs(request)
    return {"text": engine.text.output(request), "output_ids": request.output_ids[:num_output], "meta_info": meta}


def _input_logprobs(request: Request) -> list[list[Any]]:
    """From logprob_start on; the first has no log-prob."""
    if request.logprob_start < 0:
        return []
    ids = request.input_ids[request.logprob_start :].tolist()
    return [[p, t, None] for p, t in zip([None, *request.input_logprobs], ids, strict=False)]


async def generate(http: HttpRequest) -> Response:
    engine: Engine = http.app.state.engine
    body = read_generate(await http.body())
    try:
        await bring_back_adapters(http, body.adapter_names())
        grammars = await engine.grammars.prepare(body.constraints())
        requests, is_list = make_requests(body, engine, grammars)
    except RequestError as error:
        if not body.stream:
            raise
        return StreamingResponse(_refused(error), media_type="text/event-stream")
    if body.stream:
        return StreamingResponse(_stream(engine, requests, is_list), media_type="text/event-stream")
    loop = asyncio.get_running_loop()
    done = [loop.create_future() for _ in requests]
    for request, future in zip(requests, done, strict=True):
        request.changed = _resolver(loop, future)
    _submit(engine, requests)
    watcher = asyncio.ensure_future(_disconnected(http))
    everything = asyncio.ensure_future(_all(done))
    try:
        await asyncio.wait([everything, watcher], return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        if not everything.done():
            everything.cancel()
            _abort(engine, requests)
    if not everything.done():
        return Response(status_code=499)
    answers = [answer(engine, request) for request in requests]
    return Json(answers if is_list else answers[0])


async def _all(done: list[asyncio.Future[None]]) -> None:
    await asyncio.gather(*done)


def _resolver(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Any:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    def changed(request: Request) -> None:
        if request.finish_reason is not None and not loop.is_closed():
            loop.call_soon_threadsafe(resolve)

    return changed


def _submit(engine: Engine, requests: list[Request]) -> None:
    for request in requests:
        engine.submit(request)


def _abort(engine: Engine, requests: list[Request]) -> None:
    """The client has gone: stop working for it."""
    chosen = {id(request) for request in requests}
    engine.call(lambda: engine.scheduler.abort(lambda request: id(request) in chosen, "the client disconnected"))


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _refused(error: RequestError) -> AsyncIterator[bytes]:
    """As SGLang refuses a stream: with an event after a 200."""
    told = {"message": str(error), "type": "invalid_request_error", "code": 400, "retryable": False}
    yield b"data: " + msgspec.json.encode({"error": told}) + b"\n\n"
    yield b"data: [DONE]\n\n"


async def _stream(engine: Engine, requests: list[Request], is_list: bool) -> AsyncIterator[bytes]:
    """Server-sent events with everything so far; ends with [DONE]."""
    loop = asyncio.get_running_loop()
    changes: asyncio.Queue[int] = asyncio.Queue()
    for index, request in enumerate(requests):
        request.changed = _notifier(loop, changes, index)
    try:
        _submit(engine, requests)
        told = dict.fromkeys(range(len(requests)), -1)  # tokens of each open request
        while told:
            index = await changes.get()
            if index not in told:
                continue  # notices queued before the end, already told
            event = answer(engine, requests[index])
            num_tokens = len(event["output_ids"])
            if event["meta_info"]["finish_reason"] is not None:
                del told[index]
            elif num_tokens == told[index]:
                continue  # two notices were queued: the first event has told what both are of
            else:
                told[index] = num_tokens
            yield b"data: " + msgspec.json.encode({**event, "index": index} if is_list else event) + b"\n\n"
        yield b"data: [DONE]\n\n"
    finally:
        if any(request.finish_reason is None for request in requests):
            _abort(engine, requests)


def _notifier(loop: asyncio.AbstractEventLoop, changes: asyncio.Queue[int], index: int) -> Any:
    def changed(_: Request) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(changes.put_nowait, index)

    return changed
