"""What a slow start waits for, said every ten seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

EVERY_SECONDS = 10.0


@dataclass
class Waiting:
    """One wait. `what` completes "Waiting for …"; `look` is called often and speaks seldom."""

    what: str
    say: Callable[[str], None]
    started_at: float = field(default_factory=lambda: time.monotonic())
    num_said: int = 0

    def look(self) -> None:
        waited = time.monotonic() - self.started_at
        if waited >= (self.num_said + 1) * EVERY_SECONDS:
            self.num_said = int(waited // EVERY_SECONDS)
            self.say(f"Waiting for {self.what}, {waited:.0f} s so far …")
