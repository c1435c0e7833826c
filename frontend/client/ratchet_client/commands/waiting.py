"""Waiting for long work on the server, with progress, through restarts of the server."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ratchet_client.commands.output import Output
from ratchet_client.errors import ApiError, TimedOut, Unreachable
from ratchet_client.untrusted import printable

T = TypeVar("T")
INTERVAL_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 5.0


class Patience:
    """Turns an absent server into a pause. `ask` gives None while there is no answer; `away` says since when."""

    def __init__(self, limit_seconds: float = 0) -> None:
        self.away = ""
        self._end = time.monotonic() + limit_seconds if limit_seconds else None
        self._failures = 0

    def ask(self, question: Callable[[], T]) -> T | None:
        """Raises what no waiting can mend, and TimedOut when `limit_seconds` are over."""
        try:
            answer = question()
        except (Unreachable, ApiError) as error:
            if isinstance(error, ApiError) and error.status != 429 and error.status < 500:
                raise
            self.away = self.away or f"reconnecting since {datetime.now(UTC):%H:%M:%SZ}"
            self._failures += 1
            self._check_time()
            return None
        self.away, self._failures = "", 0
        return answer

    def pause(self) -> None:
        """Until the next question; longer while the server is away."""
        self._check_time()
        time.sleep(min(_MAX_PAUSE_SECONDS, INTERVAL_SECONDS * 1.5 ** min(self._failures, 9)))

    def _check_time(self) -> None:
        if self._end is not None and time.monotonic() > self._end:
            raise TimedOut("The time that --timeout allows is over; the work goes on.")


def wait_for(
    output: Output,
    question: Callable[[], T],
    *,
    is_over: Callable[[T], bool],
    progress: Callable[[T], tuple[str, int, int]],
    limit_seconds: float = 0,
) -> T:
    """Ask until it is over. `progress`: words, done, total; a bar in a terminal, else a line per change."""
    patience, last = Patience(limit_seconds), ""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=output.errors, transient=True) as bar:
        task = bar.add_task("asking …", total=None)
        while True:
            answer = patience.ask(question)
            if answer is not None:
                words, done, total = progress(answer)
                line = printable(words)
                bar.update(task, description=line, completed=done, total=total or None)
                if is_over(answer):
                    return answer
                line = f"{line} {done}/{total}"
            else:
                line = patience.away
                bar.update(task, description=line)
            if line != last and not output.errors.is_terminal:
                output.note(line)
            last = line
            patience.pause()
