"""Tells live pages that a run has news. The message carries nothing: pages read what is new from the database."""

import asyncio
import logging
import threading
from functools import partial
from uuid import UUID

from asgiref.sync import async_to_sync
from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.db import connection
from redis.exceptions import RedisError

from apps.runs.models import Run
from ratchet.commits import after_commit

logger = logging.getLogger(__name__)

EVENT = "run.changed"
_PAUSE_SECONDS = 0.05  # many commits within it are one message


def group_name(run_id: UUID | str) -> str:
    """Channel group of everyone who watches the run."""
    return f"run.{run_id}"


def announce(run: Run) -> None:
    """Tell watchers once this transaction is committed; several calls in one transaction are one message."""
    calls = (call for _, call, *_ in connection.run_on_commit if isinstance(call, partial))
    if all((call.func, call.args) != (announce_now, (run.pk,)) for call in calls):
        after_commit(announce_now, run.pk)


def announce_now(run_id: UUID | str) -> None:
    """Tell watchers of what is committed. Never waits for them, and never fails for them."""
    layer = get_channel_layer()
    if layer is None:
        return
    if isinstance(layer, InMemoryChannelLayer):  # its watchers live in this very event loop
        async_to_sync(layer.group_send)(group_name(run_id), _message(run_id))
    else:
        _voice.say(str(run_id))


class _Voice:
    """One thread a process with an event loop, and so a connection, that stays: a commit never waits for Redis."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._runs: set[str] = set()
        self._thread: threading.Thread | None = None

    def say(self, run_id: str) -> None:
        with self._lock:
            self._runs.add(run_id)
            if self._thread is None or not self._thread.is_alive():  # the first time, and after a fork
                self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
                self._thread.start()
        self._changed.set()

    def _run(self) -> None:
        asyncio.run(self._speak())

    async def _speak(self) -> None:
        layer = get_channel_layer()
        while True:
            await asyncio.to_thread(self._changed.wait)
            self._changed.clear()
            with self._lock:
                runs, self._runs = self._runs, set()
            for run_id in runs:
                try:
                    await layer.group_send(group_name(run_id), _message(run_id))
                except (OSError, RedisError):
                    # Pages ask by themselves every few seconds; a run does not fail because nobody could be told.
                    logger.warning("live pages of run %s could not be told: is REDIS_URL reachable?", run_id)
            await asyncio.sleep(_PAUSE_SECONDS)


def _message(run_id: UUID | str) -> dict[str, str]:
    return {"type": EVENT, "run": str(run_id)}


_voice = _Voice()
