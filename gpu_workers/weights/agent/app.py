"""Routes of the agent: bring a version, say what is held, health."""

import asyncio
import hmac
import logging

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_workers.contracts.store import StoreError
from gpu_workers.serving.bodies import read_body
from gpu_workers.serving.errors import ApiError, render_error
from gpu_workers.weights.delta.agents import SECRET_HEADER, BringRequest, answer_bring
from gpu_workers.weights.delta.errors import DeltaError, NoSpace
from gpu_workers.weights.delta.keeping import CheckpointKeeper
from gpu_workers.weights.peer.keeping import PeerKeeper
from gpu_workers.weights.peer.messages import PullRequest

MAX_BODY_BYTES = 1 << 20

logger = logging.getLogger(__name__)


def make_app(keeper: CheckpointKeeper, secret: str, puller: PeerKeeper | None = None) -> Starlette:
    """The ASGI application. Every route but /health asks for the secret. Without a `puller` nothing is pulled."""
    if not secret:
        raise ValueError("an agent without a secret would serve anyone")
    routes = [
        Route("/health", _health),
        Route("/weights/bring", _bring, methods=["POST"]),
        Route("/weights/pull", _pull, methods=["POST"]),
        Route("/weights/current", _current),
    ]
    app = Starlette(routes=routes, exception_handlers={ApiError: render_error})
    app.state.keeper, app.state.secret, app.state.puller = keeper, secret, puller
    return app


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _current(request: Request) -> Response:
    """What the marker names; null before the first version."""
    _authorise(request)
    marker = await asyncio.to_thread(request.app.state.keeper.current)
    return JSONResponse({"held": msgspec.to_builtins(marker) if marker else None})


async def _bring(request: Request) -> Response:
    """Answers when the version is here and checked. Goes on when the caller has left; asking again is safe."""
    _authorise(request)
    data = await read_body(request, MAX_BODY_BYTES)
    try:
        asked = msgspec.json.decode(data, type=BringRequest)
    except msgspec.DecodeError as error:
        raise ApiError(400, "bad_request", f"the body is no request to bring weights: {error}") from error
    try:
        answer = await asyncio.to_thread(answer_bring, request.app.state.keeper, asked)
    except NoSpace as error:
        raise _refusal(507, "no_space", error, asked) from error
    except DeltaError as error:
        raise _refusal(409, "refused", error, asked) from error
    except (StoreError, OSError) as error:
        raise _refusal(502, "store_or_disk", error, asked) from error
    held = answer.held
    logger.info("%s after %.2f s, %d bytes read, at %s", held.name, held.seconds, held.num_bytes, held.path)
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _pull(request: Request) -> Response:
    """The same, out of the memory of a peer that the caller names."""
    _authorise(request)
    if request.app.state.puller is None:
        raise ApiError(501, "no_peers", "this agent pulls from no peers")
    data = await read_body(request, MAX_BODY_BYTES)
    try:
        asked = msgspec.json.decode(data, type=PullRequest)
    except msgspec.DecodeError as error:
        raise ApiError(400, "bad_request", f"the body is no request to pull weights: {error}") from error
    try:
        answer = await asyncio.to_thread(request.app.state.puller.pull, asked)
    except NoSpace as error:
        raise _refusal(507, "no_space", error, asked) from error
    except (DeltaError, OSError) as error:
        raise _refusal(502, "peer_or_disk", error, asked) from error
    logger.info(
        "%s pulled in %.2f s, %d bytes, at %s", asked.wanted.name, answer.seconds, answer.num_bytes, answer.path
    )
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _refusal(status: int, code: str, error: Exception, asked: BringRequest | PullRequest) -> ApiError:
    logger.warning("%s is not brought: %s", asked.wanted.name, error)
    return ApiError(status, code, str(error))


def _authorise(request: Request) -> None:
    given, secret = request.headers.get(SECRET_HEADER, ""), request.app.state.secret
    if not hmac.compare_digest(given.encode(), secret.encode()):
        raise ApiError(401, "invalid_secret", f"the header {SECRET_HEADER} must hold ROLLOUT_AGENT_SECRET")
