"""Celery's consumer, but a connection that is lost while jobs run is no reason for the worker to end.

Where the worker notices first that its subscriptions are gone, kombu 5.7 closes only half of the lost connection, and
what then wants to close or use the other half meets an AttributeError ("hostname"). Celery knows it not as a lost
connection, stops the worker half-way, and the process lives on and consumes nothing.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.worker import consumer

logger = logging.getLogger(__name__)
PATH = f"{__name__}:Consumer"  # for Celery's setting worker_consumer


class Consumer(consumer.Consumer):
    """Goes on to reconnect whatever the closing of the lost connection says."""

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        try:
            super().on_connection_error_after_connected(exc)
        except Exception as error:  # nothing about a connection that is gone can matter
            self.connection = None
            logger.warning("the lost connection was not closed in order: %r", error)

    def call_soon_ack(self, p: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return super().call_soon_ack(partial(_acknowledge, p), *args, **kwargs)


def _acknowledge(acknowledge: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    try:
        acknowledge(*args, **kwargs)
    except AttributeError as error:  # of a message that came by a lost connection: the broker sends it again
        logger.warning("a message was not acknowledged: %r", error)
