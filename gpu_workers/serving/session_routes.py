"""Routes of the session server: sessions for their owner, OpenAI's chat completions for the agent inside one."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.contracts.seams import RolloutEngine, WorkerError
from gpu_workers.serving.bodies import read_body
from gpu_workers.serving.control import SECRET_HEADER
from gpu_workers.serving.errors import ApiError
from gpu_workers.serving.session_answers import Answer
from gpu_workers.serving.session_requests import (
    ChatBody,
    decode_as,
    parse_chat,
    parse_spec,
    said_messages,
    shown_tools,
    turn_options,
)
from gpu_workers.sessions.chat import TemplateError, find_template
from gpu_workers.sessions.conversation import ConversationError, Node, Place
from gpu_workers.sessions.journal import Journal, JournalError
from gpu_workers.sessions.limits import SessionLimits
from gpu_workers.sessions.table import Session, SessionError, SessionTable
from gpu_workers.sessions.trajectory import trajectory_of
from gpu_workers.sessions.turns import RunningTurn, order_engines, turn_seed

MAX_CHAT_BYTES = 8 * 2**20
MAX_SPEC_BYTES = 64 * 2**10
_STATUS = {"session_not_found": 404, "session_expired": 410, "session_full": 400}  # every other: 429


class SessionServer:
    """The sessions of one gateway. Where its folder cannot be used, every request is told why."""

    def __init__(
        self,
        folder: Path,
        engines: Sequence[RolloutEngine],
        models_dir: Path,
        secret: str,
        limits: SessionLimits,
    ) -> None:
        self._engines, self._models_dir, self._secret = engines, models_dir, secret
        self._problem = ""
        self._table: SessionTable | None = None
        try:
            journal = Journal(folder)
            self._table = SessionTable(journal, lambda path: find_template(path, models_dir), limits)
        except JournalError as error:
            self._problem = str(error)

    @property
    def table(self) -> SessionTable:
        if self._table is None:
            raise ApiError(503, "sessions_unavailable", self._problem)
        return self._table

    def check_owner(self, request: Request) -> None:
        """Raises ApiError 401 unless the request carries the worker's secret."""
        given = request.headers.get(SECRET_HEADER, "")
        if not self._secret or not hmac.compare_digest(given.encode(), self._secret.encode()):
            raise ApiError(401, "invalid_secret", f"the header {SECRET_HEADER} must hold RATCHET_WORKER_SECRET")

    def owned(self, request: Request) -> Session:
        """The session of the address, for its owner."""
        self.check_owner(request)
        return self._find(request)

    def entered(self, request: Request) -> Session:
        """The session of the address, for the agent that has its token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise ApiError(401, "missing_api_key", "send the session's token: Authorization: Bearer <token>")
        session = self._find(request)
        if not self.table.is_token(session, token.strip()):
            raise ApiError(401, "invalid_api_key", "that is not the token of this session")
        return session

    def _find(self, request: Request) -> Session:
        try:
            return self.table.find(request.path_params["session_id"])
        except SessionError as error:
            raise refusal(error) from error
        except TemplateError as error:
            raise ApiError(503, "engine_unavailable", str(error)) from error

    async def model_path(self, policy: PolicyRef) -> str:
        """Of the first engine that answers. Raises ApiError 404 where none of them holds the adapter."""
        problems, held = [], set[str]()
        for engine in self._engines:
            try:
                info = await engine.info()
            except WorkerError as error:
                problems.append(str(error))
                continue
            if not policy.adapter or policy.adapter in info.adapters:
                return info.model_path
            held.update(info.adapters)
        if len(problems) < len(self._engines):
            message = f"no engine holds adapter {policy.adapter!r} (held: {', '.join(sorted(held)) or 'none'})"
            raise ApiError(404, "unknown_adapter", message, param="policy.adapter")
        raise ApiError(503, "engine_unavailable", "no engine answers: " + "; ".join(problems or ["none is configured"]))

    def begin(self, session: Session, body: ChatBody) -> RunningTurn:
        """The turn that a request asks for, placed in the conversation. Raises ApiError."""
        template = session.conversation.template
        try:
            place = _locate(session, body)
        except ConversationError as error:
            raise ApiError(400, "invalid_value", str(error), param=f"messages.{error.index}") from error
        except TemplateError as error:
            raise ApiError(400, "invalid_value", str(error), param="messages") from error
        limit = min(session.spec.context_limit or template.context_limit, template.context_limit)
        room = limit - len(place.ids)
        if room < 1:
            message = f"the conversation has {len(place.ids)} tokens, the context {limit}"
            raise ApiError(400, "context_length_exceeded", message, param="messages")
        num_choices, num_observed = body.n or 1, sum(len(piece.ids) for piece in place.pieces)
        try:
            left = self.table.check_room(session, num_observed + num_choices) + num_choices
            options = turn_options(body, session.spec, turn_seed(session), min(room, left // num_choices))
            engines = order_engines(session.id, self._engines)
            return RunningTurn(self.table, session, place, options, template, engines)
        except SessionError as error:
            raise refusal(error) from error

    def close(self) -> None:
        if self._table is not None:
            self._table.close()


@dataclass(frozen=True)
class _Recent:
    """What a finished turn was asked with, and the node that its choices hang below."""

    body: ChatBody
    node: Node


def _locate(session: Session, body: ChatBody) -> Place:
    """Agents mostly send the messages of the last request again and some more: then only those are looked at."""
    recent, conversation = session.recent, session.conversation
    if recent is not None and body.tools == recent.body.tools:
        start = len(recent.body.messages)
        is_longer = len(body.messages) > start and body.messages[start].role == "assistant"
        if is_longer and body.messages[:start] == recent.body.messages:
            try:
                place = conversation.locate_after(recent.node, said_messages(body, start))
            except ConversationError as error:
                raise ConversationError(error.index + start, str(error)) from error
            if place is not None:
                return place
    return conversation.locate(said_messages(body), shown_tools(body))


def _finish(session: Session, body: ChatBody, turn: RunningTurn) -> None:
    nodes = turn.finish()
    if nodes and nodes[0].parent is not None:
        session.recent = _Recent(body, nodes[0].parent)


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
    body = parse_chat(await read_body(request, MAX_CHAT_BYTES))
    if session.closed:
        raise ApiError(404, "session_not_found", f"session {session.id} was closed")
    turn = server.begin(session, body)
    answer = Answer(body, turn, session.id, session.conversation.template)
    if body.stream:
        return _TurnStream(turn, _events(session, body, turn, answer))
    gone = asyncio.ensure_future(_stop_when_gone(request, turn))
    try:
        await turn.sample()
        _finish(session, body, turn)
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
        _finish(session, body, turn)
        for event in answer.closing():
            yield event
    except (WorkerError, SessionError, JournalError) as error:
        turn.fail()
        yield b"data: " + msgspec.json.encode(refusal(error).body()) + b"\n\n"


async def _stop_when_gone(request: Request, turn: RunningTurn) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    turn.stop()


def refusal(error: Exception) -> ApiError:
    """The error that an agent is told."""
    if isinstance(error, SessionError):
        return ApiError(_STATUS.get(error.code, 429), error.code, str(error))
    if isinstance(error, JournalError):
        return ApiError(503, "storage_unavailable", f"the turn could not be stored and is dropped: {error}")
    if getattr(error, "status", 0) != 400:
        return ApiError(503, "engine_error", str(error))
    if "adapter" in str(error):
        return ApiError(409, "adapter_not_loaded", str(error))
    return ApiError(400, "engine_refused", str(error))


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
