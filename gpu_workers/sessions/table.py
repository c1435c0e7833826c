"""The open sessions of a server: made, found, bounded, forgotten when unused, found again after a restart."""

import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.conversation import Conversation, Node
from gpu_workers.sessions.formats import ToolFormat
from gpu_workers.sessions.journal import Journal
from gpu_workers.sessions.limits import SessionLimits
from gpu_workers.sessions.records import Turn

NUM_REMEMBERED = 10_000  # sessions that expired, to say so
SWEEP_SECONDS = 5.0
_ID = re.compile(r"[0-9a-f]{32}\Z")

logger = logging.getLogger(__name__)


class SessionError(Exception):
    """A session that cannot be had; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a session samples from and how, for its whole life but for `policy`. Null leaves it to the agent."""

    policy: PolicyRef = PolicyRef()
    tool_format: ToolFormat | None = None  # None: what the model's chat template speaks of
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1024  # the most of a turn, and the default
    context_limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    idle_seconds: Annotated[float, Meta(gt=0)] | None = None  # shorter than the server's
    label: Annotated[str, Meta(max_length=200)] = ""  # the caller's own, e.g. the episode's name


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """First record of a session's file."""

    spec: SessionSpec
    token_sha256: str
    model_path: str
    at: float


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """From here on another policy samples."""

    policy: PolicyRef


class Added(msgspec.Struct, frozen=True, tag="added"):
    """One finished turn."""

    turn: Turn


_decoder = msgspec.msgpack.Decoder(Opened | Moved | Added)
_encoder = msgspec.msgpack.Encoder()


@dataclass(eq=False)
class Session:
    """One open session in memory."""

    id: str
    opened: Opened
    conversation: Conversation
    policy: PolicyRef
    used_at: float
    form: ToolFormat
    num_started: int = 0  # turns, also those that came to nothing
    running: dict[str, Callable[[], None]] = field(default_factory=dict)  # request id -> ends the turn
    promised: dict[int, int] = field(default_factory=dict)  # running turn -> the most tokens that it may add
    closed: bool = False
    recent: Any = None  # of the server: what the last finished turn was asked with, to read only what is new

    @property
    def spec(self) -> SessionSpec:
        return self.opened.spec


class SessionTable:
    """All sessions of a server. Not for several threads: whoever uses it never waits between two of its calls.

    `load_template`: the chat template of a model path, raising TemplateError.
    """

    def __init__(
        self,
        journal: Journal,
        load_template: Callable[[str], ChatTemplate],
        limits: SessionLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._load_template = load_template
        self.limits = limits
        self._clock = clock
        self._loaded: dict[str, Session] = {}
        self._stored = {name: journal.changed_at(name) for name in journal.names()}  # not loaded yet
        self._expired: OrderedDict[str, None] = OrderedDict()
        self._swept_at = 0.0
        self.num_tokens = 0  # of the sessions in memory
        self.num_promised = 0  # to their running turns

    @property
    def num_sessions(self) -> int:
        return len(self._loaded) + len(self._stored)

    def open(self, spec: SessionSpec, model_path: str) -> tuple[Session, str]:
        """A new session and its token, which is kept as a hash only. Raises SessionError, JournalError."""
        self.sweep(now=True)
        if self.num_sessions >= self.limits.max_sessions:
            raise SessionError("too_many_sessions", f"{self.num_sessions} sessions are open, the limit is as many")
        self._check_total(1)
        token, session_id = f"rss_{secrets.token_urlsafe(32)}", secrets.token_hex(16)
        opened = Opened(spec, _sha256(token), model_path, self._clock())
        session = self._session(session_id, opened)
        self._journal.append(session_id, _encoder.encode(opened), new=True)
        self._loaded[session_id] = session
        return session, token

    def find(self, session_id: str) -> Session:
        """An open session, read from its file after a restart. Raises SessionError, TemplateError."""
        self.sweep()
        session = self._loaded.get(session_id) or self._load(session_id)
        if session is None:
            if session_id in self._expired:
                raise SessionError("session_expired", f"session {session_id} expired: its tokens are gone")
            raise SessionError("session_not_found", f"there is no session {session_id!r}: unknown, deleted or expired")
        if self._is_over(session):
            self._expire(session)
            raise SessionError("session_expired", f"session {session_id} expired: its tokens are gone")
        return session

    def is_token(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(_sha256(token), session.opened.token_sha256)

    def start_turn(self, session: Session, num_tokens: int) -> int:
        """The number of the turn that begins now and may add so many tokens, until `end_turn`.

        Raises SessionError where the session takes no more.
        """
        if len(session.running) >= self.limits.max_running:
            message = f"{len(session.running)} turns of this session are running, the limit is as many"
            raise SessionError("too_many_turns", message)
        number = session.num_started
        session.num_started += 1
        session.used_at = self._clock()
        session.promised[number] = num_tokens
        self.num_promised += num_tokens
        return number

    def end_turn(self, session: Session, number: int) -> None:
        """It adds nothing more. Safe to repeat."""
        self.num_promised -= session.promised.pop(number, 0)

    def check_room(self, session: Session, num_new: int) -> int:
        """Tokens that fit beside `num_new`. Raises SessionError when the session, or all of them, would be too many."""
        total, limit = session.conversation.num_tokens + num_new, self.limits.max_session_tokens
        if total > limit:
            message = f"the session would hold {total} tokens in all its branches, the limit is {limit}: open another"
            raise SessionError("session_full", message)
        left = limit - total - (promised := sum(session.promised.values()))
        if left < 0:
            message = f"running turns may add {promised} tokens, which leaves no room for another: wait for one to end"
            raise SessionError("too_many_turns", message)
        return min(left, self._check_total(num_new))

    def add(self, session: Session, turn: Turn) -> list[Node]:
        """Write the turn, then let it be seen. Raises JournalError."""
        self._journal.append(session.id, _encoder.encode(Added(turn)))
        self.end_turn(session, turn.number)
        session.used_at = self._clock()
        before = session.conversation.num_tokens
        nodes = session.conversation.add(turn)
        self.num_tokens += session.conversation.num_tokens - before
        return nodes

    def move(self, session: Session, policy: PolicyRef) -> None:
        """Turns that begin from now on are sampled from `policy`."""
        self._journal.append(session.id, _encoder.encode(Moved(policy)))
        session.policy = policy

    def delete(self, session: Session) -> None:
        """Its running turns end unrecorded."""
        session.closed = True
        for stop in list(session.running.values()):
            stop()
        for number in list(session.promised):
            self.end_turn(session, number)
        if self._loaded.pop(session.id, None) is not None:
            self.num_tokens -= session.conversation.num_tokens
        self._journal.delete(session.id)

    def sweep(self, *, now: bool = False) -> None:
        """Forget what nobody has used for its time; at most every few seconds unless `now`."""
        at = self._clock()
        if not now and at - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = at
        for session in [session for session in self._loaded.values() if self._is_over(session)]:
            self._expire(session)
        for name in [n for n, used_at in self._stored.items() if at - used_at > self.limits.idle_seconds]:
            self._forget(name)

    def close(self) -> None:
        """Leave everything as it is for the next process."""
        self._journal.close()

    def _load(self, session_id: str) -> Session | None:
        if not _ID.match(session_id) or session_id not in self._stored:
            return None
        try:
            records = [_decoder.decode(record) for record in self._journal.read(session_id)]
        except (FileNotFoundError, msgspec.DecodeError) as error:
            logger.warning("session %s cannot be read and is dropped: %s", session_id, error)
            records = []
        if not records or not isinstance(records[0], Opened):
            self._forget(session_id)
            return None
        session = self._session(session_id, records[0])
        session.used_at = self._stored[session_id]
        for record in records[1:]:
            if isinstance(record, Moved):
                session.policy = record.policy
            elif isinstance(record, Added):
                session.conversation.add(record.turn)
        session.num_started = session.conversation.last_turn + 1
        del self._stored[session_id]
        self._loaded[session_id] = session
        self.num_tokens += session.conversation.num_tokens
        return session

    def _session(self, session_id: str, opened: Opened) -> Session:
        template = self._load_template(opened.model_path)
        form = opened.spec.tool_format or template.tool_format
        return Session(session_id, opened, Conversation(template, form), opened.spec.policy, self._clock(), form)

    def _is_over(self, session: Session) -> bool:
        now, idle = self._clock(), min(session.spec.idle_seconds or math.inf, self.limits.idle_seconds)
        unused = not session.running and now - session.used_at > idle
        return unused or now - session.opened.at > self.limits.max_seconds

    def _expire(self, session: Session) -> None:
        self.delete(session)
        self._remember(session.id)

    def _forget(self, name: str) -> None:
        self._stored.pop(name, None)
        self._journal.delete(name)
        self._remember(name)

    def _remember(self, name: str) -> None:
        self._expired[name] = None
        while len(self._expired) > NUM_REMEMBERED:
            self._expired.popitem(last=False)

    def _check_total(self, num_new: int) -> int:
        held = self.num_tokens + self.num_promised
        left = self.limits.max_tokens - held - num_new
        if left < 0:
            message = f"the open sessions and their running turns hold {held} tokens, limit {self.limits.max_tokens}"
            raise SessionError("too_many_tokens", message)
        return left


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
