"""How busy the trainer is while it works: processor and memory, and its host's GPUs where there are some."""

import threading
import time

from gpu_workers.monitoring import host_usage
from gpu_workers.process import cpu_seconds, current_memory_bytes
from gpu_workers.reporting import PointStream
from gpu_workers.trainer.heartbeat import HeartbeatThread

PERIOD_SECONDS = 5.0


class UsageThread(threading.Thread):
    """Logs a reading every few seconds at the step that the heartbeat names."""

    def __init__(self, stream: PointStream, heartbeat: HeartbeatThread, period_seconds: float = PERIOD_SECONDS) -> None:
        super().__init__(name="usage", daemon=True)
        self._stream, self._heartbeat, self._period = stream, heartbeat, period_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        spent, at = cpu_seconds(), time.monotonic()
        while not self._ended.wait(self._period):
            now, clock = cpu_seconds(), time.monotonic()
            readings = {"trainer/busy_cores": (now - spent) / (clock - at)}
            readings |= {"trainer/memory_bytes": float(current_memory_bytes())} | host_usage()
            self._stream.log(self._heartbeat.step, readings)
            spent, at = now, clock

    def end(self) -> None:
        """Stop, and send what is left."""
        self._ended.set()
        self._stream.close()
