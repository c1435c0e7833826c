"""Routes of the session server: sessions for their owner, OpenAI's chat completions for the agent inside one."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.serving.bodies import read_body
from gpu_workers.serving.errors import ApiError
from gpu_workers.serving.session_answers import Answer
from gpu_workers.serving.session_requests import ChatBody, decode_as, parse_chat, parse_spec
from gpu_workers.serving.session_server import SessionServer, finish_turn, refusal
from gpu_workers.sessions.chat import TemplateError
from gpu_workers.sessions.journal import JournalError
from gpu_workers.sessions.table import Session, SessionError
from gpu_workers.sessions.trajectory import trajectory_of
from gpu_workers.sessions.turns import RunningTurn

MAX_CHAT_BYTES = 8 * 2**20
MAX_SPEC_BYTES = 64 * 2**10


def session_routes() -> list[Route]:
    """They find their SessionServer at `app.state.sessions`."""
    return [
        Route("/sessions", create, methods=["POST"]),
        Route("/sessions/{session_id}", show, methods=["GET"]),
        Route("/sessions/{session_id}", delete, methods=["DELETE"]),
        Route("/sessions/{session_id}/policy", move, methods=["PUT"]),
        Route("/sessions/{session_id}/trajectory", show_trajectory),
        Route("/sessions/{session_id}/v1/models", list_models),
        Route("/sessions/{session_id}/v1/chat/completions", complete, methods=["POST"]),
    ]


async def create(request: Request) -> Response:
    """A session, and the token for the agent, which is shown this once."""
    server = _server(request)
    server.check_owner(request)
    spec = parse_spec(await read_body(request, MAX_SPEC_BYTES))
    model_path = await server.model_path(spec.policy)
    try:
        session, token = server.table.open(spec, model_path)
    except SessionError as error:
        raise refusal(error) from error
    except TemplateError as error:
        raise ApiError(503, "engine_unavailable", str(error)) from error
    except JournalError as error:
        raise ApiError(503, "storage_unavailable", str(error)) from error
    return _json({**_description(session), "token": token, "base_path": f"/sessions/{session.id}/v1"}, 201)


async def show(request: Request) -> Response:
    return _json(_description(_server(request).owned(request)))


async def delete(request: Request) -> Response:
    server = _server(request)
    server.table.delete(server.owned(request))
    return Response(status_code=204)


async def move(request: Request) -> Response:
    """Another policy from the next turn on."""
    server = _server(request)
    session = server.owned(request)
    policy = decode_as(await read_body(request, MAX_SPEC_BYTES), PolicyRef)
    await server.model_path(policy)
    try:
        server.table.move(session, policy)
    except JournalError as error:
        raise ApiError(503, "storage_unavailable", str(error)) from error
    return _json(_description(session))


async def show_trajectory(request: Request) -> Response:
    """Ids, mask, log-probs, version spans of the main branch, of `?branch=N`, or of all."""
    session, which = _server(request).owned(request), request.query_params.get("branch", "main")
    try:
        return _json(trajectory_of(session, which))
    except KeyError as error:
        raise ApiError(404, "branch_not_found", f"the session has no branch {which!r}", param="branch") from error


async def list_models(request: Request) -> Response:
    """One: a session has one policy at a time, whatever name a request gives it."""
    session = _server(request).entered(request)
    model = {"id": "policy", "object": "model", "created": int(session.opened.at), "owned_by": "ratchet"}
    return _json({"object": "list", "data": [model]})


async def complete(request: Request) -> Response:
    """One turn. It is on disk before its end is sent."""
    server = _server(request)
    session = server.entered(request)
    data = await read_body(request, MAX_CHAT_BYTES)
    body = parse_chat(data)
    if session.closed:
        raise ApiError(404, "session_not_found", f"session {session.id} was closed")
    turn = server.begin(session, body, len(data))
    answer = Answer(body, turn, session.id, session.conversation.template)
    if body.stream:
        return _TurnStream(turn, _events(session, body, turn, answer))
    gone = asyncio.ensure_future(_stop_when_gone(request, turn))
    try:
        await turn.sample()
        finish_turn(session, body, turn)
        return Response(answer.whole(), media_type="application/json")
    except (WorkerError, SessionError, JournalError) as error:
        turn.fail()
        raise refusal(error) from error
    finally:
        gone.cancel()
        turn.close()


class _TurnStream(StreamingResponse):
    """Its turn is closed however the response ends, also when it never began."""

    def __init__(self, turn: RunningTurn, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._turn.close()


async def _events(session: Session, body: ChatBody, turn: RunningTurn, answer: Answer) -> AsyncIterator[bytes]:
    """A stream has begun with 200: a failure becomes an error event."""
    try:
        async for event in answer.events():
            yield event
        finish_turn(session, body, turn)
        for event in answer.closing():
            yield event
    except (WorkerError, SessionError, JournalError) as error:
        turn.fail()
        yield b"data: " + msgspec.json.encode(refusal(error).body()) + b"\n\n"


async def _stop_when_gone(request: Request, turn: RunningTurn) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    turn.stop()


def _description(session: Session) -> dict[str, object]:
    return {
        "id": session.id,
        "label": session.spec.label,
        "policy": session.policy,
        "tool_format": session.form,
        "created": session.opened.at,
        "num_turns": session.conversation.num_turns,
        "num_tokens": session.conversation.num_tokens,
        "num_running": len(session.running),
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _server(request: Request) -> SessionServer:
    server: SessionServer = request.app.state.sessions
    return server
