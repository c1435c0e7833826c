"""Ends a Celery worker that takes no message while messages wait for it, so that its supervisor starts another.

A worker may live on and consume nothing, most often after its broker was killed. What counts here is the effect and
not the cause: jobs wait in its queues, it works on none, and for `PATIENCE_SECONDS` it has received none.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery.signals import worker_init
from celery.worker import state

PATIENCE_SECONDS = 45.0  # longer than the pause before a lost broker is tried again
CHECK_SECONDS = 5.0
EXIT_STATUS = 75  # EX_TEMPFAIL: start it again

logger = logging.getLogger(__name__)


@dataclass
class Watch:
    """Of one worker. The three readings: messages that wait, jobs received so far, jobs at work."""

    waiting: Callable[[], int]
    received: Callable[[], int] = lambda: int(state.all_total_count[0])
    at_work: Callable[[], int] = lambda: len(state.active_requests)
    clock: Callable[[], float] = time.monotonic
    patience_seconds: float = PATIENCE_SECONDS
    _last: int = -1
    _since: float = field(default=0.0)

    def is_stuck(self) -> bool:
        """One look. A broker that does not answer is no reason: no worker could take anything from it."""
        received, now = self.received(), self.clock()
        try:
            idle = received == self._last and not self.at_work() and self.waiting() > 0
        except Exception as error:  # kombu's errors and the driver's have no common base
            logger.debug("the broker does not answer: %s", error)
            idle = False
        if not idle:
            self._last, self._since = received, now
        return idle and now - self._since >= self.patience_seconds


def watch_worker(patience_seconds: float = PATIENCE_SECONDS, check_seconds: float = CHECK_SECONDS) -> None:
    """Watch the worker of this process from its start on, from a thread that its event loop cannot hold up."""

    def begin(sender: Any, **_: Any) -> None:
        watch = Watch(lambda: num_waiting(sender.app), patience_seconds=patience_seconds)
        threading.Thread(target=_run, args=(watch, check_seconds), name="watchdog", daemon=True).start()

    worker_init.connect(begin, weak=False, dispatch_uid="ratchet.watchdog")


def num_waiting(app: Any) -> int:
    """Messages in the queues that this worker consumes, on a connection of its own."""
    with app.connection_for_read() as connection, connection.channel() as channel:
        return sum(channel.queue_declare(queue=name).message_count for name in app.amqp.queues.consume_from)


def _run(watch: Watch, check_seconds: float) -> None:
    while True:
        time.sleep(check_seconds)
        if watch.is_stuck():
            logger.critical(
                "no message was taken for %.0f s though some wait: ending, to be started again", watch.patience_seconds
            )
            os._exit(EXIT_STATUS)  # threads that are stuck would hold up anything gentler
