"""The session server behind its routes: who may do what, which session, and where in it a request goes on."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.contracts.seams import RolloutEngine, WorkerError
from gpu_workers.serving.control import SECRET_HEADER
from gpu_workers.serving.errors import ApiError
from gpu_workers.serving.session_requests import ChatBody, num_characters, said_messages, shown_tools, turn_options
from gpu_workers.sessions.chat import TemplateError, find_template
from gpu_workers.sessions.conversation import ConversationError, Node, Place
from gpu_workers.sessions.engines import order_engines
from gpu_workers.sessions.journal import Journal, JournalError
from gpu_workers.sessions.limits import SessionLimits
from gpu_workers.sessions.table import Session, SessionError, SessionTable
from gpu_workers.sessions.turns import RunningTurn, turn_seed

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

    def begin(self, session: Session, body: ChatBody, num_bytes: int = 0) -> RunningTurn:
        """The turn that a request of so many bytes asks for, placed in the conversation. Raises ApiError."""
        template = session.conversation.template
        if not template.can_fit(num_bytes) and not template.can_fit(num_said := num_characters(body)):
            message = f"the conversation has {num_said} characters, the context {template.context_limit} tokens"
            raise ApiError(400, "context_length_exceeded", message, param="messages")
        try:
            place = _locate(session, body)
        except ConversationError as error:
            raise ApiError(400, "invalid_value", str(error), param=f"messages.{error.index}") from error
        except TemplateError as error:
            raise ApiError(400, "invalid_value", str(error), param="messages") from error
        except RecursionError as error:
            raise ApiError(400, "invalid_value", "tools or arguments are nested too deeply", param="tools") from error
        limit = min(session.spec.context_limit or template.context_limit, template.context_limit)
        room = limit - len(place.ids)
        if room < 1:
            message = f"the conversation has {len(place.ids)} tokens, the context {limit}"
            raise ApiError(400, "context_length_exceeded", message, param="messages")
        num_choices, num_observed = body.n or 1, sum(len(piece.ids) for piece in place.pieces)
        try:
            left = self.table.check_room(session, num_observed + num_choices) + num_choices
            options = turn_options(body, session.spec, session.form, turn_seed(session), min(room, left // num_choices))
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


def finish_turn(session: Session, body: ChatBody, turn: RunningTurn) -> None:
    nodes = turn.finish()
    if nodes and nodes[0].parent is not None:
        session.recent = _Recent(body, nodes[0].parent)


def refusal(error: Exception) -> ApiError:
    """The error that an agent is told."""
    if isinstance(error, SessionError):
        return ApiError(_STATUS.get(error.code, 429), error.code, str(error))
    if isinstance(error, JournalError):
        return ApiError(503, "storage_unavailable", f"the turn could not be stored and is dropped: {error}")
    if getattr(error, "status", 0) != 400:
        return ApiError(503, "engine_error", str(error))
    if "adapter" in str(error) and "sampling_params" not in str(error):
        return ApiError(409, "adapter_not_loaded", str(error))
    return ApiError(400, "engine_refused", str(error))
