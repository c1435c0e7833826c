"""What many pages of one process watch of one run is read once: news four times a second, all else once a second."""

import asyncio
import copy
import json
import logging
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

from channels.db import database_sync_to_async
from django.contrib.auth import get_user_model
from django.db import Error as DatabaseError
from django.utils import timezone

from apps.metrics.presentation import view_of
from apps.metrics.selectors import BaseState, Cursor, base_state, page_of
from apps.runs.models import Run
from apps.runs.selectors import find_run
from ratchet.problems import Problem

MIN_INTERVAL_SECONDS = 0.25
BASE_SECONDS = 1.0  # how old the numbers beside the series may be
RIGHTS_SECONDS = 1.0  # how long a page may go on after its right was taken

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
    """Lives in one event loop while the run has watchers there."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.watchers: set[Watcher] = set()
        self._news = asyncio.Event()
        self._last_id, self._heard = "", 0.0
        self._allowed: dict[_Viewer, float] = {}  # when the right was last seen
        self._base: _Base | None = None
        self._lock = asyncio.Lock()  # a watcher is told by one at a time, so nothing twice
        self._task: asyncio.Task[None] | None = None

    def join(self, watcher: Watcher) -> None:
        self.watchers.add(watcher)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, watcher: Watcher) -> None:
        self.watchers.discard(watcher)
        if not self.watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    def announce(self, message_id: str) -> None:
        """Something was committed. Each watcher hears of it by itself; the first counts."""
        if message_id != self._last_id:
            self._last_id, self._heard = message_id, time.monotonic()
            self._news.set()

    async def answer(self, watchers: set[Watcher]) -> None:
        """Read what these lack and tell them: one read for all that have seen the same."""
        async with self._lock:
            await self._answer(watchers)

    async def _answer(self, watchers: set[Watcher]) -> None:
        groups: dict[tuple[Cursor, str], list[Watcher]] = defaultdict(list)
        for watcher in await self._still_allowed(watchers):
            if watcher.telling is not None and not watcher.telling.done():
                self._news.set()  # its turn comes after the pause
                continue
            groups[(watcher.cursor, watcher.mark)].append(watcher)
        for (cursor, mark), group in groups.items():
            if self._base is None or time.monotonic() - self._base.at >= BASE_SECONDS:
                self._base = await database_sync_to_async(_read_base)(self.run_id)
            elif self._base.at < self._heard:
                self._news.set()  # something else may have changed since: it follows when its time has come
            if self._base is None:  # the run is gone
                await asyncio.gather(*(watcher.refused() for watcher in group))
                continue
            state = await database_sync_to_async(_read)(self._base, cursor, mark)
            text = json.dumps(state, separators=(",", ":"))
            for watcher in group:
                watcher.cursor = Cursor(state["cursor"]["points"], state["cursor"]["events"])
                watcher.mark = state["mark"]
                watcher.telling = asyncio.create_task(watcher.tell(text))

    async def _run(self) -> None:
        """Many commits within the interval make one push, the last one included."""
        while True:
            await self._news.wait()
            self._news.clear()  # what is committed from here on needs a push of its own
            started = time.monotonic()
            try:
                await self.answer(set(self.watchers))
            except (DatabaseError, OSError):
                # Its pages ask again every few seconds, and miss nothing: their cursors have not moved.
                logger.warning("run %s could not be read for its pages: does PostgreSQL answer?", self.run_id)
            await asyncio.sleep(max(0.0, started + MIN_INTERVAL_SECONDS - time.monotonic()))

    async def _still_allowed(self, watchers: set[Watcher]) -> list[Watcher]:
        """The rights are looked up again and again: a socket outlives a membership."""
        now = time.monotonic()
        viewers = {_viewer(watcher.user): watcher.user for watcher in watchers}
        old = {key: user for key, user in viewers.items() if now - self._allowed.get(key, -1e9) >= RIGHTS_SECONDS}
        if old:
            allowed = await database_sync_to_async(_may_watch)(old, self.run_id)
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
    return user.pk, user.token_project_id, user.token_scopes, user.token_expires_at


def _may_watch(viewers: dict[_Viewer, Any], run_id: str) -> list[_Viewer]:
    """Those who may see the run now, with the person read afresh: rights, activity and expiry change."""
    people = get_user_model().objects.in_bulk([key[0] for key in viewers])
    allowed = []
    for key, user in viewers.items():
        fresh = people.get(user.pk)
        expired = user.token_expires_at is not None and user.token_expires_at <= timezone.now()
        if fresh is None or expired:
            continue
        fresh = copy.copy(fresh)
        fresh.token_scopes, fresh.token_project_id = user.token_scopes, user.token_project_id
        try:
            find_run(fresh, run_id)
        except Problem:
            continue
        allowed.append(key)
    return allowed


@dataclass(frozen=True)
class _Base:
    """The numbers beside the series with their words, read at `at` (monotonic)."""

    base: BaseState
    view: dict[str, Any]
    at: float


def _read_base(run_id: str) -> _Base | None:
    started = time.monotonic()
    run = Run.objects.select_related("project", "suite", "policy__base_model").filter(pk=run_id).first()
    if run is None:
        return None
    base = base_state(run)
    return _Base(base, view_of(run, base.state, base.tables), started)


def _read(base: _Base, cursor: Cursor, mark: str) -> dict[str, Any]:
    """Whoever asks may see the run: `_still_allowed` was asked first."""
    return page_of(base.base, base.view, cursor, mark)
