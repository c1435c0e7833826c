"""The HTTP server: SGLang's routes over one Engine."""

import asyncio
import time
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gpu_workers.engines.embedded import control, staging, updates
from gpu_workers.engines.embedded.engine import Engine, EngineStoppedError
from gpu_workers.engines.embedded.generate import generate
from gpu_workers.engines.embedded.http import Json, error_response
from gpu_workers.engines.embedded.request import Request, RequestError, SamplingParams

VERSION = "embedded-1"
HEALTH_TIMEOUT_SECONDS = 20.0


def build_app(engine: Engine) -> Starlette:
    """The ASGI application; the engine's thread is started and stopped by the caller."""
    both, post = ["GET", "POST"], ["POST"]
    app = Starlette(
        routes=[
            Route("/generate", generate, methods=post),
            Route("/abort_request", control.abort_request, methods=post),
            Route("/pause_generation", control.pause_generation, methods=post),
            Route("/continue_generation", control.continue_generation, methods=post),
            Route("/flush_cache", control.flush_cache, methods=both),
            Route("/load_lora_adapter", control.load_lora_adapter, methods=post),
            Route("/unload_lora_adapter", control.unload_lora_adapter, methods=post),
            Route("/stage_weights", staging.stage_weights, methods=post),
            Route("/update_weights_from_disk", control.update_weights_from_disk, methods=post),
            Route("/init_weights_update_group", updates.init_weights_update_group, methods=post),
            Route("/destroy_weights_update_group", updates.destroy_weights_update_group, methods=post),
            Route("/begin_weight_update", updates.begin_weight_update, methods=post),
            Route("/update_weights_from_distributed", updates.update_weights_from_distributed, methods=post),
            Route("/end_weight_update", updates.end_weight_update, methods=post),
            Route("/weights_checker", control.weights_checker, methods=both),
            Route("/update_weight_version", control.update_weight_version, methods=post),
            Route("/model_info", model_info),
            Route("/get_model_info", model_info),
            Route("/server_info", server_info),
            Route("/get_server_info", server_info),
            Route("/health", health),
            Route("/health_generate", health_generate),
            Route("/v1/models", list_models),
            Route("/v1/loads", list_loads),
            Route("/metrics", metrics),
        ],
        exception_handlers={RequestError: _bad_request, EngineStoppedError: _stopped},
    )
    app.state.engine = engine
    app.state.adapter_lock = asyncio.Lock()
    app.state.weights_lock = asyncio.Lock()
    app.state.updates = updates.Updates()
    app.state.staging = staging.Staging()
    return app


async def _bad_request(_: HttpRequest, error: Exception) -> Response:
    return error_response(str(error))


async def _stopped(_: HttpRequest, error: Exception) -> Response:
    return error_response(str(error), 500)  # 503 would say that it is worth waiting for


def _engine(http: HttpRequest) -> Engine:
    engine: Engine = http.app.state.engine
    return engine


async def model_info(http: HttpRequest) -> Response:
    engine = _engine(http)
    return Json(
        {
            "model_path": str(engine.model.path),
            "tokenizer_path": str(engine.model.path),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": engine.model.weight_version,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "model_fingerprint": engine.config.fingerprint,
        }
    )


async def server_info(http: HttpRequest) -> Response:
    engine = _engine(http)
    limits = engine.limits
    return Json(
        {
            "model_path": str(engine.model.path),
            "served_model_name": engine.served_name,
            "device": "cpu",
            "tp_size": 1,
            "version": VERSION,
            "dtype": str(engine.model.weights.dtype).removeprefix("torch."),
            "context_length": engine.config.context_length,
            "max_running_requests": limits.max_running,
            "max_total_num_tokens": limits.max_total_tokens,
            "max_loaded_loras": limits.max_loras,
            "max_lora_rank": limits.max_lora_rank,
            "enable_lora": True,
            "enable_deterministic_inference": bool(engine.model.block_rows),
            "grammar_backend": "xgrammar",
            "is_paused": engine.paused,
            "swaps_weights_at_end": True,  # of an update over a process group: generation may go on until then
            "weight_version": engine.model.weight_version,
            "uptime_seconds": time.time() - engine.started_at,
            "internal_states": [control.loads(engine)["loads"][0]],
        }
    )


async def health(http: HttpRequest) -> Response:
    """200 while the engine's thread lives: a paused or a busy engine is healthy."""
    engine = _engine(http)
    return error_response(engine.failure, 503) if engine.failure else Response(status_code=200)


async def health_generate(http: HttpRequest) -> Response:
    """Samples one token of the base model, unless generation is paused."""
    engine = _engine(http)
    if engine.failure or engine.paused:
        return await health(http)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not done.done():
            done.set_result(None)

    def changed(_: Request) -> None:
        loop.call_soon_threadsafe(resolve)

    params = SamplingParams(max_new_tokens=1, temperature=0.0)
    request = Request(np.zeros(1, np.int32), params, rid=f"HEALTH_CHECK_{time.time()}", changed=changed)
    engine.submit(request)
    try:
        await asyncio.wait_for(done, HEALTH_TIMEOUT_SECONDS)
    except TimeoutError:
        engine.call(lambda: engine.abort(request.rid, False))
        return error_response(f"no token within {HEALTH_TIMEOUT_SECONDS:g} s", 503)
    return Response(status_code=200)


async def list_models(http: HttpRequest) -> Response:
    engine = _engine(http)

    def card(name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(engine.started_at),
            "owned_by": "ratchet",
            "root": root,
            "parent": parent,
            "max_model_len": engine.config.context_length,
        }

    adapters = [card(a.name, a.path, engine.served_name) for a in list(engine.adapters.values()) if not a.retiring]
    return Json({"object": "list", "data": [card(engine.served_name, engine.served_name, None), *adapters]})


async def list_loads(http: HttpRequest) -> Response:
    return Json(control.loads(_engine(http)))


async def metrics(http: HttpRequest) -> Response:
    return Response(_engine(http).metrics.render(), media_type="text/plain; version=0.0.4")
