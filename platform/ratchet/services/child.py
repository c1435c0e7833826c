"""A supervised process: when it ended, and when it is to start again."""

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_STEADY_SECONDS = 30.0  # a process that lived so long starts its count of failures anew
_FIRST_DELAY_SECONDS = 0.5
_MAX_DELAY_SECONDS = 30.0


@dataclass
class Child:
    """A process and how to start it again. The delay doubles with every failure in a row."""

    name: str
    launch: Callable[[], subprocess.Popen[bytes]]
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10.0
    process: subprocess.Popen[bytes] | None = None
    num_failures: int = 0
    started_at: float = field(default_factory=time.monotonic)
    restart_at: float = 0.0

    def start(self) -> None:
        self.process, self.started_at = self.launch(), time.monotonic()

    def notice_end(self) -> str | None:
        """What to tell people when the process has ended since the last look; plans its restart."""
        if self.process is None or (status := self.process.poll()) is None:
            return None
        now = time.monotonic()
        self.process = None
        self.num_failures = 1 if now - self.started_at > _STEADY_SECONDS else self.num_failures + 1
        delay = min(_FIRST_DELAY_SECONDS * 2 ** (self.num_failures - 1), _MAX_DELAY_SECONDS)
        self.restart_at = now + delay
        return f"ended with status {status}; starting it again in {delay:.1f} s."

    def is_due(self) -> bool:
        return self.process is None and time.monotonic() >= self.restart_at
