"""Routes that change the engine: abort, pause, flush, adapters, weights."""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from gpu_workers.engines.embedded.config import EngineConfigError
from gpu_workers.engines.embedded.engine import Engine, EngineBusyError, PauseMode
from gpu_workers.engines.embedded.http import Json, read_body
from gpu_workers.engines.embedded.lora import Adapter, AdapterError
from gpu_workers.engines.embedded.request import RequestError
from gpu_workers.engines.embedded.staging import Staging

# How often a waiting control call looks again whether the requests it waits for have ended.
_POLL_SECONDS = 0.01


class AbortBody(msgspec.Struct, kw_only=True):
    rid: str = ""
    abort_all: bool = False


class PauseBody(msgspec.Struct, kw_only=True):
    mode: PauseMode = PauseMode.ABORT


class LoadLoraBody(msgspec.Struct, kw_only=True):
    lora_name: str
    lora_path: str
    pinned: bool = False


class UnloadLoraBody(msgspec.Struct, kw_only=True):
    lora_name: str


class UpdateFromDiskBody(msgspec.Struct, kw_only=True):
    model_path: str
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    keep_pause: bool = False  # a paused engine always stays paused until /continue_generation


class CheckWeightsBody(msgspec.Struct, kw_only=True):
    action: str = "checksum"


class WeightVersionBody(msgspec.Struct, kw_only=True):
    new_version: str
    abort_all_requests: bool = True


def _engine(http: HttpRequest) -> Engine:
    engine: Engine = http.app.state.engine
    return engine


async def abort_request(http: HttpRequest) -> Response:
    """An id that nobody has is no error."""
    body, engine = await read_body(http, AbortBody), _engine(http)
    await asyncio.wrap_future(engine.call(lambda: engine.abort(body.rid, body.abort_all)))
    return Response(status_code=200)


async def pause_generation(http: HttpRequest) -> Response:
    body, engine = await read_body(http, PauseBody), _engine(http)
    await asyncio.wrap_future(engine.call(lambda: engine.pause(body.mode)))
    return Json({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(http: HttpRequest) -> Response:
    engine = _engine(http)
    await asyncio.wrap_future(engine.call(engine.resume))
    return Json({"message": "Generation continued successfully.", "status": "ok"})


async def flush_cache(http: HttpRequest) -> Response:
    engine = _engine(http)
    try:
        await asyncio.wrap_future(engine.call(engine.flush_cache))
    except EngineBusyError as error:
        return PlainTextResponse(f"{error}\n", status_code=400)
    return PlainTextResponse("Cache flushed.\n")


def _loaded(engine: Engine) -> dict[str, str]:
    return {name: adapter.path for name, adapter in engine.adapters.items() if not adapter.retiring}


def _lora_answer(engine: Engine, error: str = "") -> Json:
    body = {"success": not error, "error_message": error or None, "loaded_adapters": _loaded(engine)}
    return Json(body, status_code=400 if error else 200)


async def load_lora_adapter(http: HttpRequest) -> Response:
    """Read on another thread, then made visible between two steps: generation does not pause."""
    body, engine = await read_body(http, LoadLoraBody), _engine(http)
    lock: asyncio.Lock = http.app.state.adapter_lock
    async with lock:
        try:
            await _load(engine, body)
        except AdapterError as error:
            return _lora_answer(engine, str(error))
    return _lora_answer(engine)


async def _load(engine: Engine, body: LoadLoraBody) -> None:
    """Raises AdapterError. Returns once the adapter that had to make room, if one had to, serves nobody any more."""
    adapter = await asyncio.to_thread(engine.read_adapter, body.lora_name, body.lora_path)
    adapter.pinned = body.pinned
    oldest = await asyncio.wrap_future(engine.call(lambda: engine.add_adapter(adapter)))
    if oldest is not None:
        await _until_unused(engine, oldest)


async def bring_back_adapters(http: HttpRequest, names: Iterable[str]) -> None:
    """Load again what was unloaded or pushed out, as SGLang does. Raises RequestError when its folder has gone."""
    engine, lock = _engine(http), http.app.state.adapter_lock

    def is_there(name: str) -> bool:
        adapter = engine.adapters.get(name)
        return adapter is not None and not adapter.retiring

    for name in names:
        if is_there(name) or name not in engine.adapter_paths:
            continue
        async with lock:
            if is_there(name) or name not in engine.adapter_paths:
                continue
            try:
                await _load(engine, LoadLoraBody(lora_name=name, lora_path=engine.adapter_paths[name]))
            except AdapterError as error:
                raise RequestError(f"adapter {name!r} cannot be loaded again: {error}") from error


async def unload_lora_adapter(http: HttpRequest) -> Response:
    """Answers when the last running request has ended. New ones wait for that, and then bring the adapter back."""
    body, engine = await read_body(http, UnloadLoraBody), _engine(http)
    lock: asyncio.Lock = http.app.state.adapter_lock
    async with lock:
        adapter = engine.adapters.get(body.lora_name)
        if adapter is None:
            return _lora_answer(engine, f"LoRA with name {body.lora_name} does not exist: it is not loaded")
        adapter.retiring = True
        await _until_unused(engine, adapter)
    return _lora_answer(engine)


async def _until_unused(engine: Engine, adapter: Adapter) -> None:
    while not await asyncio.wrap_future(engine.call(lambda: engine.remove_unused_adapter(adapter))):
        await asyncio.sleep(_POLL_SECONDS)


async def update_weights_from_disk(http: HttpRequest) -> Response:
    """Paused: swapped at once. Otherwise running requests end first, and new ones wait behind the update."""
    body, engine = await read_body(http, UpdateFromDiskBody), _engine(http)
    lock: asyncio.Lock = http.app.state.weights_lock
    staging: Staging = http.app.state.staging
    async with lock:
        try:
            model = await staging.take(engine, body.model_path)
            await quiesce(engine, body.abort_all_requests)
            swap = partial(engine.replace_model, model, body.weight_version, body.flush_cache)
            await asyncio.wrap_future(engine.call(swap))
        except (EngineConfigError, EngineBusyError) as error:
            return Json(
                {"success": False, "message": str(error), "num_paused_requests": _num_paused(engine)}, status_code=400
            )
        finally:
            engine.draining = False
            engine.call(lambda: None)  # wakes the thread
    return Json(
        {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": _num_paused(engine)}
    )


async def quiesce(engine: Engine, abort_all: bool) -> None:
    """Unless paused, nothing runs afterwards and nothing starts until `draining` is taken back."""
    if abort_all:
        await asyncio.wrap_future(engine.call(lambda: engine.abort("", True, "aborted by a weight update")))
    if engine.paused:
        return
    engine.draining = True
    while engine.num_running and not engine.paused:
        await asyncio.sleep(_POLL_SECONDS)


def _num_paused(engine: Engine) -> int:
    return engine.num_running + engine.num_waiting if engine.paused else 0


async def update_weight_version(http: HttpRequest) -> Response:
    body, engine = await read_body(http, WeightVersionBody), _engine(http)

    def update() -> None:
        if body.abort_all_requests:
            engine.abort("", True, "aborted by update_weight_version")
        engine.set_weight_version(body.new_version)

    await asyncio.wrap_future(engine.call(update))
    message = f"Weight version updated to {body.new_version}"
    return Json({"success": True, "message": message, "new_version": body.new_version})


async def weights_checker(http: HttpRequest) -> Response:
    """SGLang's checksum: one for the engine's whole weights. Its other actions are for its own tests."""
    body, engine = await read_body(http, CheckWeightsBody), _engine(http)
    if body.action != "checksum":
        raise RequestError(f"action {body.action!r} is not supported by the embedded engine; use checksum")
    return Json({"success": True, "message": "", "per_engine_checksum": engine.model.weights.digest})


def loads(engine: Engine) -> dict[str, Any]:
    """The body of /v1/loads."""
    memory = engine.scheduler.memory
    load = {
        "dp_rank": 0,
        "num_running_reqs": engine.num_running,
        "num_waiting_reqs": engine.num_waiting,
        "num_used_tokens": memory.tree.num_tokens,
        "max_total_num_tokens": engine.limits.max_total_tokens,
        "token_usage": memory.tree.num_locked_tokens / memory.capacity,
        "max_running_requests": engine.limits.max_running,
    }
    return {"timestamp": time.time(), "dp_rank_count": 1, "loads": [load]}
