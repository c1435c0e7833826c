"""What is new on a run since it was last asked: each point and event once, however often the server restarts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet_client.types import Series

Live = dict[str, Any]
FINAL_STATES = frozenset({"succeeded", "failed", "halted", "cancelled"})


@dataclass(frozen=True)
class Point:
    """One value of a metric. What JSON has no number for is "NaN", "Infinity" or "-Infinity"."""

    revision: int
    name: str
    step: int
    value: float | str
    attempt: int
    measured: bool


@dataclass
class Update:
    """`live` is the whole answer (strip, ledger, processes, tables). `series` is given instead of `points` when there
    were too many to list: it replaces all points so far."""

    live: Live
    points: list[Point] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    series: Sequence[Series] | None = None

    @property
    def state(self) -> str:
        return str(self.live["strip"]["state"])

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


class RunFeed:
    """Asks by cursor. The cursor of points is exact. Events of the last seconds come again, as they become visible in
    the order of their commits, not of their ids: those that were seen are dropped here."""

    def __init__(
        self, live: Callable[[int, int, str], Live], series: Callable[[], tuple[Sequence[Series], int]]
    ) -> None:
        self._live, self._series = live, series
        self._points, self._events, self._mark = 0, 0, ""
        self._seen: set[int] = set()
        self._tables: Any = None

    def poll(self) -> Update:
        """One question. An exception leaves the cursor where it was: the next poll misses nothing."""
        live = self._live(self._points, self._events, self._mark)
        cursor, series = live["cursor"], None
        if live["refetch"]:
            series, cursor["points"] = self._series()
        self._tables = live["tables"] = live["tables"] or self._tables
        self._mark = live["mark"]
        events = [event for event in live["events"] if event["id"] not in self._seen]
        self._seen |= {event["id"] for event in events}
        self._seen = {number for number in self._seen if number > cursor["events"]}
        self._points, self._events = cursor["points"], cursor["events"]
        return Update(live, [Point(*row) for row in live["points"]], events, series)
