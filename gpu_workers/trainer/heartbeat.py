"""Heartbeats of one trainer attempt: they hold its lease."""

import contextlib
import threading
import time
from collections.abc import Callable

import msgspec

from gpu_workers.contracts.messages import Heartbeat
from gpu_workers.process import cpu_seconds, current_memory_bytes

HEARTBEAT_SECONDS = 5.0


class HeartbeatThread(threading.Thread):
    """Sends a heartbeat at once and every few seconds. A broker that is away is not an error here."""

    def __init__(
        self,
        send: Callable[[Heartbeat], None],
        *,
        run_id: str,
        attempt: int,
        token: int,
        worker: str,
        interval_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._send = send
        self._identity = Heartbeat(run_id=run_id, attempt=attempt, token=token, worker=worker)
        self._interval = interval_seconds
        self._ended = threading.Event()
        self.state = "loading"
        self.step = 0

    def run(self) -> None:
        while True:
            # Whatever the broker's client raises, training goes on: the lease's reaper decides, not this thread.
            with contextlib.suppress(Exception):
                self._send(self._heartbeat())
            if self._ended.wait(self._interval):
                return

    def end(self) -> None:
        """Stop sending."""
        self._ended.set()

    def _heartbeat(self) -> Heartbeat:
        return msgspec.structs.replace(
            self._identity,
            state=self.state,
            step=self.step,
            cpu_seconds=cpu_seconds(),
            memory_bytes=current_memory_bytes(),
            time=time.time(),
        )
