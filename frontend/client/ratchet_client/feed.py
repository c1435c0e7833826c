"""What is new on a run since it was last asked: each point and event once, however often the server restarts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet_client.types import Series

Live = dict[str, Any]
FINAL_STATES = frozenset({"succeeded", "failed", "halted", "cancelled"})


@dataclass(frozen=True)
class Point:
    """One value of a metric. None: it was NaN or infinite."""

    id: int
    name: str
    step: int
    value: float | None
    attempt: int
    measured: bool


@dataclass
class Update:
    """`live` is the whole answer (strip, ledger, processes, tables). `series` is given instead of `points` when there
    were too many to list; it holds all of the run, and points of its last seconds may come again."""

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
    """Asks by cursor. The server repeats the last seconds, as rows become visible in the order of their commits, not of
    their ids: what came before is dropped here."""

    def __init__(self, live: Callable[[int, int, str], Live], series: Callable[[], Sequence[Series]]) -> None:
        self._live, self._series = live, series
        self._cursor, self._mark = {"points": 0, "events": 0}, ""
        self._seen: dict[str, set[int]] = {"points": set(), "events": set()}
        self._tables: Any = None

    def poll(self) -> Update:
        """One question. An exception leaves the cursor where it was: the next poll misses nothing."""
        live = self._live(self._cursor["points"], self._cursor["events"], self._mark)
        series = self._series() if live["refetch"] else None
        self._tables = live["tables"] = live["tables"] or self._tables
        self._mark = live["mark"]
        points = [Point(*row) for row in live["points"]]
        update = Update(
            live,
            [point for point in points if point.id not in self._seen["points"]],
            [event for event in live["events"] if event["id"] not in self._seen["events"]],
            series,
        )
        self._advance("points", [point.id for point in points], live["cursor"])
        self._advance("events", [event["id"] for event in live["events"]], live["cursor"])
        return update

    def _advance(self, kind: str, ids: list[int], cursor: dict[str, int]) -> None:
        self._cursor[kind] = cursor[kind]
        self._seen[kind] = {number for number in (*self._seen[kind], *ids) if number > cursor[kind]}
