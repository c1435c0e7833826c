"""What many pages of one process watch of one run is read once: news some times a second, all else once a second."""

import asyncio
import contextlib
import copy
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.contrib.auth import get_user_model
from django.db import Error as DatabaseError
from redis.exceptions import RedisError

from apps.accounts.authentication import live_tokens
from apps.accounts.permissions import Permission, who_may
from apps.accounts.sockets import CLOSE_NOT_FOUND, live_sessions
from apps.metrics.announcer import group_name
from apps.metrics.presentation import view_of
from apps.metrics.push import Page
from apps.metrics.selectors import BaseState, Cursor, base_state
from apps.runs.models import Run

MIN_INTERVAL_SECONDS = 0.15
LISTEN_SECONDS = 2.0  # how long a page waits for Redis before it goes without
BASE_SECONDS = 1.0  # how old the numbers beside the series may be
RIGHTS_SECONDS = 1.0  # how long a page may go on after its right was taken
CLOSE_UNAUTHENTICATED = 4401

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """A page: what it was sent, and how to tell it. `refused` ends it with a close code: the user may not watch."""

    user: Any
    cursor: Cursor
    mark: str
    telling: asyncio.Task[None] | None  # under way: a slow page keeps nobody waiting, and gets the more next time

    async def tell(self, text: str) -> None: ...
    async def refused(self, code: int) -> None: ...


class Feed:
    """Lives in one event loop while sockets of the run are open there. Four tasks: hear of news, read and tell it, read
    the numbers beside it, which takes longer and holds nobody up, and look whether all still may watch."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.watchers: set[Watcher] = set()  # who said what it has, and is told the rest
        self.open: set[Watcher] = set()  # they, and who has not asked yet
        self._news, self._changed = asyncio.Event(), asyncio.Event()  # to tell; to read the numbers again
        self._allowed: dict[_Viewer, float] = {}  # when the right was last seen
        self._base: _Base | None = None
        self._encoded: dict[int, str] = {}
        self._lock = asyncio.Lock()  # a watcher is told by one at a time, so nothing twice
        self._listening = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: list[asyncio.Task[None]] = []

    def attend(self, watcher: Watcher) -> None:
        """From here on the watcher is refused once its right is gone, whether it asks or not."""
        self.open.add(watcher)
        if not self._tasks:
            tasks = (self._listen, self._tell, self._refresh, self._guard)
            self._tasks = [asyncio.create_task(task()) for task in tasks]

    async def join(self, watcher: Watcher) -> None:
        """Returns once news is heard of: what the watcher then reads misses nothing that is announced later."""
        self.attend(watcher)
        self.watchers.add(watcher)
        with contextlib.suppress(TimeoutError):  # Redis is away: pages ask by themselves every few seconds
            async with asyncio.timeout(LISTEN_SECONDS):  # wait_for of Python 3.11 can swallow a cancellation
                await self._listening.wait()

    def leave(self, watcher: Watcher) -> None:
        """The last one ends the feed's tasks; `ended` waits for them."""
        self.watchers.discard(watcher)
        self.open.discard(watcher)
        if self.open or not self._tasks:
            return
        self._ending, self._tasks = self._tasks, []
        self._listening.clear()
        for task in self._ending:
            task.cancel()

    async def ended(self) -> None:
        """Until no read of a feed without watchers is under way."""
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def answer(self, watchers: set[Watcher]) -> None:
        """Read what these lack and tell them."""
        self._changed.set()
        async with self._lock:
            await self._answer(watchers)

    async def _answer(self, watchers: set[Watcher]) -> None:
        groups: dict[tuple[Cursor, str], list[Watcher]] = defaultdict(list)
        for watcher in await self._still_allowed(watchers, RIGHTS_SECONDS):
            if watcher.telling is not None and not watcher.telling.done():
                self._news.set()  # its turn comes after the pause
                continue
            groups[(watcher.cursor, watcher.mark)].append(watcher)
        base = self._base = self._base or await _in_thread(_read_base, self.run_id)
        if base is None:  # the run is gone
            gone = [watcher for group in groups.values() for watcher in group]
            await asyncio.gather(*(watcher.refused(CLOSE_NOT_FOUND) for watcher in gone))
            return
        if not groups:
            return
        oldest = Cursor(min(seen.points for seen, _ in groups), min(seen.events for seen, _ in groups))
        page = await _in_thread(Page.read, base.base, base.view, oldest, self._encoded)
        for (seen, mark), group in groups.items():
            text, cursor = page.since(seen, mark)
            for watcher in group:
                watcher.cursor, watcher.mark = cursor, base.base.state["mark"]
                watcher.telling = asyncio.create_task(watcher.tell(text))

    async def _listen(self) -> None:
        """One subscription for all watchers of the run in this process."""
        layer = get_channel_layer()
        group = group_name(self.run_id)
        while True:
            try:
                channel = await layer.new_channel()
                await layer.group_add(group, channel)
                self._listening.set()
                try:
                    while True:
                        await layer.receive(channel)
                        self._news.set()
                        self._changed.set()
                finally:
                    await layer.group_discard(group, channel)
            except (OSError, RedisError):
                logger.warning("news of run %s is not heard: is REDIS_URL reachable?", self.run_id)
                await asyncio.sleep(LISTEN_SECONDS)

    async def _tell(self) -> None:
        """Many commits within the interval make one push, the last one included."""
        while True:
            await self._news.wait()
            self._news.clear()  # what is committed from here on needs a push of its own
            started = time.monotonic()
            try:
                async with self._lock:
                    await self._answer(set(self.watchers))
            except (DatabaseError, OSError):
                # Its pages ask again every few seconds, and miss nothing: their cursors have not moved.
                logger.warning("run %s could not be read for its pages: does PostgreSQL answer?", self.run_id)
            await asyncio.sleep(max(0.0, started + MIN_INTERVAL_SECONDS - time.monotonic()))

    async def _refresh(self) -> None:
        """Once a second, or as seldom as keeps it to a fifth of the time."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            started = time.monotonic()
            try:
                base = await _in_thread(_read_base, self.run_id)
            except (DatabaseError, OSError):
                logger.warning("run %s could not be read for its pages: does PostgreSQL answer?", self.run_id)
            else:
                if self._base is None or base is None or base.differs(self._base):
                    self._news.set()
                self._base = base
            await asyncio.sleep(max(BASE_SECONDS, 4 * (time.monotonic() - started)))

    async def _guard(self) -> None:
        """A socket outlives a membership: one that nothing happens on ends as soon as the others."""
        while True:
            await asyncio.sleep(RIGHTS_SECONDS)
            try:
                await self._still_allowed(set(self.open), 0.0)
            except (DatabaseError, OSError):
                logger.warning("rights on run %s could not be read: does PostgreSQL answer?", self.run_id)

    async def _still_allowed(self, watchers: set[Watcher], max_age: float) -> list[Watcher]:
        """Those who may watch, by rights that were looked up within `max_age` seconds; the others are refused."""
        now = time.monotonic()
        viewers = {_viewer(watcher.user): watcher.user for watcher in watchers}
        old = {key: user for key, user in viewers.items() if now - self._allowed.get(key, -1e9) >= max_age}
        codes: dict[_Viewer, int] = {}
        if old:
            codes = await _in_thread(_refusals, old, self.run_id)
            self._allowed = {key: at for key, at in self._allowed.items() if key not in old}
            self._allowed |= dict.fromkeys(old.keys() - codes.keys(), now)
        refused = {watcher: _viewer(watcher.user) for watcher in watchers}
        refused = {watcher: key for watcher, key in refused.items() if key not in self._allowed}
        await asyncio.gather(*(watcher.refused(codes.get(key, CLOSE_NOT_FOUND)) for watcher, key in refused.items()))
        return [watcher for watcher in watchers if watcher not in refused]


def feed_of(run_id: str) -> Feed:
    """The feed of this run in the running event loop; it exists as long as sockets of it are open."""
    loop = asyncio.get_running_loop()
    for key in [key for key, feed in _feeds.items() if not feed.open]:
        del _feeds[key]
    return _feeds.setdefault((id(loop), run_id), Feed(run_id))


_feeds: dict[tuple[int, str], Feed] = {}


_Viewer = tuple[Any, ...]  # a person, as far as a token or a session lets them


def _viewer(user: Any) -> _Viewer:
    return user.pk, user.token_id, user.session_key


def _refusals(viewers: dict[_Viewer, Any], run_id: str) -> dict[_Viewer, int]:
    """Close codes of those who may not see the run now, in a few statements, however many there are.

    Person, token and session are read afresh: rights, activity and expiry change.
    """
    project_id = Run.objects.filter(pk=run_id).values_list("project_id", flat=True).first()
    people = get_user_model().objects.in_bulk([key[0] for key in viewers])
    asked = [user.token_id for user in viewers.values() if user.token_id]
    tokens = set(live_tokens().filter(pk__in=asked).values_list("pk", flat=True)) if asked else set()
    known: dict[_Viewer, Any] = {}
    for key, user in viewers.items():
        fresh = copy.copy(people.get(user.pk))
        if fresh is None or not fresh.is_active or (user.token_id and user.token_id not in tokens):
            continue
        fresh.token_id, fresh.session_key = user.token_id, user.session_key
        fresh.token_scopes, fresh.token_project_id = user.token_scopes, user.token_project_id
        known[key] = fresh
    sessions = live_sessions(known.values())
    known = {key: user for key, user in known.items() if not user.session_key or user.session_key in sessions}
    may = who_may([*known.values()], Permission.RUN_READ, project_id) if project_id else []
    codes = dict.fromkeys(viewers, CLOSE_UNAUTHENTICATED) | dict.fromkeys(known, CLOSE_NOT_FOUND)
    allowed = {_viewer(user) for user in may}
    return {key: code for key, code in codes.items() if key not in allowed}


@dataclass(frozen=True)
class _Base:
    """The numbers beside the series, with their words."""

    base: BaseState
    view: dict[str, Any]

    def differs(self, other: "_Base") -> bool:
        return (self.base.state, self.view) != (other.base.state, other.view)


def _read_base(run_id: str) -> _Base | None:
    run = Run.objects.select_related("project", "suite", "policy__base_model").filter(pk=run_id).first()
    if run is None:
        return None
    base = base_state(run)
    return _Base(base, view_of(run, base.state, base.tables))


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Not in the one thread that all of Django's own wait for."""
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*arguments)
    return result
