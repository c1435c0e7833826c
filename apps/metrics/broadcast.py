"""Tells live pages that a run has news. The message carries nothing: pages read what is new from the database."""

import logging
from uuid import UUID

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import connection, transaction
from redis.exceptions import RedisError

from apps.runs.models import Run

logger = logging.getLogger(__name__)

EVENT = "run.changed"


def group_name(run_id: UUID | str) -> str:
    """Channel group of everyone who watches the run."""
    return f"run.{run_id}"


def announce(run: Run) -> None:
    """Tell watchers once this transaction is committed; several calls in one transaction are one message."""
    waiting = {function for _, function, *_ in connection.run_on_commit if isinstance(function, _Announcement)}
    announcement = _Announcement(run.pk)
    if announcement not in waiting:
        transaction.on_commit(announcement, robust=True)


class _Announcement:
    """A callback that knows what it announces, so that it can be found among those that wait for the commit."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id

    def __call__(self) -> None:
        layer = get_channel_layer()
        if layer is None:
            return
        try:
            async_to_sync(layer.group_send)(group_name(self.run_id), {"type": EVENT, "run": str(self.run_id)})
        except (OSError, RedisError):
            # Pages ask by themselves every few seconds; a run does not fail because nobody could be told.
            logger.warning("live pages of run %s could not be told: is REDIS_URL reachable?", self.run_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Announcement) and other.run_id == self.run_id

    def __hash__(self) -> int:
        return hash(self.run_id)
