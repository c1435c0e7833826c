"""Routes of the gateway: completions, models, health; sessions where it has a folder for them."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gpu_workers.contracts.seams import RolloutEngine, WorkerError
from gpu_workers.serving.bodies import read_body
from gpu_workers.serving.channels import ChannelFollower, ChannelTable, Installer
from gpu_workers.serving.completions import Completion, parse_request
from gpu_workers.serving.control import ChannelBinding, ControlError, ControlPlane, Introspection, TokenCache
from gpu_workers.serving.errors import ApiError, render_error
from gpu_workers.serving.session_routes import session_routes
from gpu_workers.serving.session_server import SessionServer
from gpu_workers.sessions.chat import ChatTemplate, TemplateError, find_template
from gpu_workers.sessions.limits import SessionLimits

MAX_BODY_BYTES = 2 * 2**20
CONTROL_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class GatewayOptions:
    """What a gateway needs. `engines` are clients of engines that serve the same base model."""

    control_url: str
    secret: str
    redis_url: str
    models_dir: Path
    connect: Callable[[], list[RolloutEngine]]
    installer: Callable[[list[RolloutEngine]], Installer]
    name: str = field(default_factory=lambda: f"gateway@{socket.gethostname()}")
    control_transport: httpx.AsyncBaseTransport | None = None
    sessions_dir: Path | None = None  # None: no sessions are served
    session_limits: SessionLimits = field(default_factory=SessionLimits)


class Gateway:
    """State of a running gateway."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self.engines = options.connect()
        self._client = httpx.AsyncClient(timeout=CONTROL_TIMEOUT_SECONDS, transport=options.control_transport)
        self.control = ControlPlane(options.control_url, options.secret, self._client)
        self.tokens = TokenCache(self.control)
        self.table = ChannelTable(self.control, options.installer(self.engines), options.name, holds=self._all_hold)
        self.follower = ChannelFollower(self.table, self.tokens, options.redis_url)

    async def caller(self, request: Request) -> Introspection:
        """Who asks. Raises ApiError 401, or 503 while the control plane cannot be asked."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise ApiError(401, "missing_api_key", "send an API token: Authorization: Bearer <token>")
        try:
            caller = await self.tokens.introspect(token.strip())
        except ControlError as error:
            raise ApiError(503, "control_plane_unavailable", f"the token cannot be checked now: {error}") from error
        if not caller.active:
            raise ApiError(401, "invalid_api_key", "the API token is unknown, expired or revoked")
        return caller

    def binding(self, caller: Introspection, model: str) -> ChannelBinding:
        """The channel's policy. Raises ApiError 404, which also hides other projects' channels."""
        binding = self.table.find(model)
        if binding is None or binding.project not in caller.projects:
            detail = f" ({self.table.problem})" if self.table.problem and binding is None else ""
            message = f"there is no model {model!r} for you: use <project>/<channel>, see /v1/models{detail}"
            raise ApiError(404, "model_not_found", message, param="model")
        return binding

    async def engine_for(self, binding: ChannelBinding) -> tuple[RolloutEngine, ChatTemplate]:
        """The first engine that answers and holds the adapter, which is put back where an engine lost it."""
        problems = []
        for engine in self.engines:
            try:
                info = await engine.info()
                if binding.adapter and binding.adapter not in info.adapters:
                    await self.table.refresh()
                return engine, find_template(info.model_path, self._options.models_dir)
            except (WorkerError, TemplateError) as error:
                problems.append(str(error))
        raise ApiError(503, "engine_unavailable", "no engine answers: " + "; ".join(problems or ["none is configured"]))

    async def close(self) -> None:
        await self._client.aclose()
        for engine in self.engines:
            await engine.close()

    async def _all_hold(self, adapter: str) -> bool:
        return all([adapter in (await engine.info()).adapters for engine in self.engines])


def make_app(options: GatewayOptions) -> Starlette:
    """The ASGI application; following the channels starts and ends with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        gateway = Gateway(options)
        app.state.gateway = gateway
        if options.sessions_dir is not None:
            app.state.sessions = SessionServer(
                options.sessions_dir, gateway.engines, options.models_dir, options.secret, options.session_limits
            )
        following = asyncio.create_task(gateway.follower.run())
        try:
            yield
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            if options.sessions_dir is not None:
                app.state.sessions.close()
            await gateway.close()

    routes = [
        Route("/health", health),
        Route("/v1/models", list_models),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        *(session_routes() if options.sessions_dir is not None else ()),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={ApiError: render_error})


async def health(request: Request) -> Response:
    """200 as soon as the process serves; `problem` says what is missing for answering."""
    table = _gateway(request).table
    return JSONResponse({"status": "ok", "channels": [b.model for b in table.all()], "problem": table.problem})


async def list_models(request: Request) -> Response:
    """The channels of the caller's projects."""
    gateway = _gateway(request)
    caller = await gateway.caller(request)
    models = [
        {"id": binding.model, "object": "model", "created": 0, "owned_by": binding.project}
        for binding in gateway.table.all()
        if binding.project in caller.projects
    ]
    return JSONResponse({"object": "list", "data": models})


async def chat_completions(request: Request) -> Response:
    """OpenAI's chat completions, whole or streamed."""
    gateway = _gateway(request)
    caller = await gateway.caller(request)
    chat = parse_request(await _body(request))
    binding = gateway.binding(caller, chat.model)
    engine, template = await gateway.engine_for(binding)
    try:
        completion = Completion(chat, binding, engine, template)
    except TemplateError as error:
        raise ApiError(400, "invalid_value", str(error), param="messages") from error
    if chat.stream:
        return StreamingResponse(_guarded(completion.events()), media_type="text/event-stream")
    try:
        return JSONResponse(await completion.whole())
    except WorkerError as error:
        raise ApiError(503, "engine_error", str(error)) from error


async def _guarded(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """A stream has begun with 200: an engine's failure becomes an error event."""
    try:
        async for event in events:
            yield event
    except WorkerError as error:
        yield f"data: {json.dumps(ApiError(503, 'engine_error', str(error)).body())}\n\n"


async def _body(request: Request) -> object:
    data = await read_body(request, MAX_BODY_BYTES)
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from error


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway
