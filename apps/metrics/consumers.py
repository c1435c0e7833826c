"""The live page's websocket: says what is new since the page's cursor, at most seven times a second."""

import asyncio
import contextlib
import json
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.db import Error as DatabaseError

from apps.accounts.sockets import CLOSE_NOT_FOUND
from apps.metrics.feed import CLOSE_UNAUTHENTICATED, Feed, feed_of
from apps.metrics.selectors import Cursor
from apps.runs.selectors import may_see_run

CLOSE_TRY_AGAIN = 1013  # the database does not answer now


class RunConsumer(AsyncJsonWebsocketConsumer):
    """One page watching one run.

    The page sends {"cursor": points, "events": events, "mark": tables}; the answer, and every later push, is a
    `live_page`. What was pushed moves the cursor, never back; a page that reconnects sends its own and misses nothing.
    """

    feed: Feed | None = None
    left: Feed | None = None  # after a refusal
    cursor, mark = Cursor(), ""
    telling: asyncio.Task[None] | None = None
    asked = False

    async def connect(self) -> None:
        self.run_id = str(self.scope["url_route"]["kwargs"]["run_id"])
        self.user = self.scope.get("user")
        if self.user is not None and "session" in self.scope:
            self.user.session_key = self.scope["session"].session_key or ""
        await self.accept()  # a close code reaches the browser only on an accepted socket
        if self.user is None or not self.user.is_authenticated:
            await self.close(CLOSE_UNAUTHENTICATED)
            return
        if not await database_sync_to_async(may_see_run)(self.user, self.run_id):
            await self.close(CLOSE_NOT_FOUND)
            return
        self.feed = feed_of(self.run_id)
        self.feed.attend(self)

    async def disconnect(self, code: int) -> None:
        if feed := self.feed or self.left:
            feed.leave(self)
            await feed.ended()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """What is no JSON is answered like any other message that says nothing."""
        try:
            content = json.loads(text_data or "")
        except (ValueError, RecursionError):
            content = None
        await self.receive_json(content)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """The page says what it has, and gets the rest."""
        if self.feed is None:
            return
        if not isinstance(content, dict):
            await self.send_json({"error": 'send {"cursor": number, "events": number}'})
            return
        cursor = Cursor(_whole(content.get("cursor")), _whole(content.get("events")))
        # What was pushed meanwhile may cross with the question.
        if not self.asked or cursor.points > self.cursor.points:
            self.cursor = cursor
        self.asked, self.mark = True, str(content.get("mark", ""))
        feed = self.feed
        await feed.join(self)
        try:
            await feed.answer({self})
        except DatabaseError:
            await self.close(CLOSE_TRY_AGAIN)

    async def tell(self, text: str) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the page is gone; it comes back with its own cursor
            await self.send(text_data=text)

    async def refused(self, code: int) -> None:
        if self.feed is None:
            return  # another task has closed it
        self.left, self.feed = self.feed, None
        with contextlib.suppress(OSError, RuntimeError):
            await self.close(code)
        self.left.leave(self)  # at the end: it may cancel the very task that we are in


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 2**63 else 0
