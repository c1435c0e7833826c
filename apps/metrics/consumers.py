"""The live page's websocket: says what is new since the page's cursor, at most four times a second."""

import asyncio
import time
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer

from apps.metrics.broadcast import group_name
from apps.metrics.selectors import Cursor, live_page
from apps.runs.selectors import find_run
from ratchet.problems import Problem

MIN_INTERVAL_SECONDS = 0.25
CLOSE_UNAUTHENTICATED = 4401
CLOSE_NOT_FOUND = 4404


class RunConsumer(AsyncJsonWebsocketConsumer):
    """One page watching one run.

    The page sends {"cursor": points, "events": events, "mark": tables}; the answer, and every later push, is a
    `live_page`. What was pushed moves the cursor; a page that reconnects sends its own and misses nothing.
    """

    async def connect(self) -> None:
        self.run_id = str(self.scope["url_route"]["kwargs"]["run_id"])
        self.cursor, self.mark = Cursor(), ""
        self.allowed = self.asked = False
        self.last_push = 0.0
        self.waiting: asyncio.Task[None] | None = None
        await self.accept()  # a close code reaches the browser only on an accepted socket
        user = self.scope.get("user")
        if user is None or not user.is_authenticated:
            await self.close(CLOSE_UNAUTHENTICATED)
            return
        if not await database_sync_to_async(_may_watch)(user, self.run_id):
            await self.close(CLOSE_NOT_FOUND)
            return
        self.allowed = True
        await self.channel_layer.group_add(group_name(self.run_id), self.channel_name)

    async def disconnect(self, code: int) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        await self.channel_layer.group_discard(group_name(self.run_id), self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """The page says what it has, and gets the rest."""
        if not self.allowed:
            return
        if not isinstance(content, dict):
            await self.send_json({"error": 'send {"cursor": number, "events": number}'})
            return
        self.cursor = Cursor(_whole(content.get("cursor")), _whole(content.get("events")))
        self.mark = str(content.get("mark", ""))
        self.asked = True
        await self._push()

    async def run_changed(self, event: dict[str, Any]) -> None:
        """Something was committed. Many commits within the interval make one push, the last one included."""
        if not self.asked or (self.waiting is not None and not self.waiting.done()):
            return
        self.waiting = asyncio.create_task(self._push_later())

    async def _push_later(self) -> None:
        await asyncio.sleep(max(0.0, self.last_push + MIN_INTERVAL_SECONDS - time.monotonic()))
        self.waiting = None  # what is committed from here on needs a push of its own
        await self._push()

    async def _push(self) -> None:
        self.last_push = time.monotonic()
        state = await database_sync_to_async(_read)(self.scope["user"], self.run_id, self.cursor, self.mark)
        if state is None:
            await self.close(CLOSE_NOT_FOUND)
            return
        self.cursor = Cursor(state["cursor"]["points"], state["cursor"]["events"])
        self.mark = state["mark"]
        await self.send_json(state)


def _may_watch(user: Any, run_id: str) -> bool:
    try:
        find_run(user, run_id)
    except Problem:
        return False
    return True


def _read(user: Any, run_id: str, cursor: Cursor, mark: str) -> dict[str, Any] | None:
    """The rights are looked up each time: a socket outlives a membership."""
    try:
        run = find_run(user, run_id)
    except Problem:
        return None
    return live_page(run, cursor, known_tables=mark)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
