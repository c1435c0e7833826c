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
from apps.metrics.announcer import group_name
from apps.metrics.presentation import view_of
from apps.metrics.push import Page
from apps.metrics.selectors import BaseState, Cursor, base_state
from apps.runs.models import Run
from apps.runs.selectors import may_see_run

MIN_INTERVAL_SECONDS = 0.15
LISTEN_SECONDS = 2.0  # how long a page waits for Redis before it goes without
BASE_SECONDS = 1.0  # how old the numbers beside the series may be
RIGHTS_SECONDS = 1.0  # how long a page may go on after its right was taken

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """A page: what it was sent, and how to tell it. `refused` ends it: the user may no longer watch."""

    user: Any
    cursor: Cursor
    mark: str
    telling: asyncio.Task[None] | None  # under way: a slow page keeps nobody waiting, and gets the more next time

    async def tell(self, text: str) -> None: ...
    async def refused(self) -> None: ...


class Feed:
    """Lives in one event loop while the run has watchers there. Three tasks: hear of news, read and tell it, and read
    the numbers beside it, which takes longer and holds nobody up."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.watchers: set[Watcher] = set()
        self._news, self._changed = asyncio.Event(), asyncio.Event()  # to tell; to read the numbers again
        self._allowed: dict[_Viewer, float] = {}  # when the right was last seen
        self._base: _Base | None = None
        self._encoded: dict[int, str] = {}
        self._lock = asyncio.Lock()  # a watcher is told by one at a time, so nothing twice
        self._listening = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: list[asyncio.Task[None]] = []

    async def join(self, watcher: Watcher) -> None:
        """Returns once news is heard of: what the watcher then reads misses nothing that is announced later."""
        self.watchers.add(watcher)
        if not self._tasks:
            self._tasks = [asyncio.create_task(task()) for task in (self._listen, self._tell, self._refresh)]
        with contextlib.suppress(TimeoutError):  # Redis is away: pages ask by themselves every few seconds
            async with asyncio.timeout(LISTEN_SECONDS):  # wait_for of Python 3.11 can swallow a cancellation
                await self._listening.wait()

    def leave(self, watcher: Watcher) -> None:
        """The last one ends the feed's tasks; `ended` waits for them."""
        self.watchers.discard(watcher)
        if self.watchers or not self._tasks:
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
        for watcher in await self._still_allowed(watchers):
            if watcher.telling is not None and not watcher.telling.done():
                self._news.set()  # its turn comes after the pause
                continue
            groups[(watcher.cursor, watcher.mark)].append(watcher)
        base = self._base = self._base or await _in_thread(_read_base, self.run_id)
        if base is None:  # the run is gone
            await asyncio.gather(*(watcher.refused() for group in groups.values() for watcher in group))
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

    async def _still_allowed(self, watchers: set[Watcher]) -> list[Watcher]:
        """The rights are looked up again and again: a socket outlives a membership."""
        now = time.monotonic()
        viewers = {_viewer(watcher.user): watcher.user for watcher in watchers}
        old = {key: user for key, user in viewers.items() if now - self._allowed.get(key, -1e9) >= RIGHTS_SECONDS}
        if old:
            allowed = await _in_thread(_may_watch, old, self.run_id)
            self._allowed = {key: at for key, at in self._allowed.items() if key not in old}
            self._allowed |= dict.fromkeys(allowed, now)
        refused = [watcher for watcher in watchers if _viewer(watcher.user) not in self._allowed]
        await asyncio.gather(*(watcher.refused() for watcher in refused))
        return [watcher for watcher in watchers if watcher not in refused]


def feed_of(run_id: str) -> Feed:
    """The feed of this run in the running event loop; it exists as long as it has watchers."""
    loop = asyncio.get_running_loop()
    for key in [key for key, feed in _feeds.items() if not feed.watchers]:
        del _feeds[key]
    return _feeds.setdefault((id(loop), run_id), Feed(run_id))


_feeds: dict[tuple[int, str], Feed] = {}


_Viewer = tuple[Any, ...]  # a person, as far as a token lets them


def _viewer(user: Any) -> _Viewer:
    return user.pk, user.token_id


def _may_watch(viewers: dict[_Viewer, Any], run_id: str) -> list[_Viewer]:
    """Those who may see the run now, with person and token read afresh: rights, activity and expiry change."""
    people = get_user_model().objects.in_bulk([key[0] for key in viewers])
    tokens = set(live_tokens().filter(pk__in=[user.token_id for user in viewers.values()]).values_list("pk", flat=True))
    allowed = []
    for key, user in viewers.items():
        fresh = people.get(user.pk)
        if fresh is None or (user.token_id and user.token_id not in tokens):
            continue
        fresh = copy.copy(fresh)
        fresh.token_scopes, fresh.token_project_id = user.token_scopes, user.token_project_id
        if may_see_run(fresh, run_id):
            allowed.append(key)
    return allowed


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
