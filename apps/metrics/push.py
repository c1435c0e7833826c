"""What is pushed to pages of a run that have seen different parts of it: read once, each batch written as JSON once."""

import json
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from apps.metrics.news import MAX_POINTS, batches_since, texts_of
from apps.metrics.presentation import event_words
from apps.metrics.selectors import MAX_EVENTS, BaseState, Cursor, event_row, settled
from apps.runs.models import RunEvent
from apps.runs.selectors import events_since

MOST_ENCODED = 400  # batches that a feed keeps as JSON


@dataclass(frozen=True)
class Page:
    """A `live_page` for whoever has seen at least `oldest`, as text."""

    base: BaseState
    view: dict[str, Any]
    batches: list[tuple[int, int, str]]  # revision, points, their JSON without brackets
    cursor: int
    refetch: bool  # of `oldest`, and so of all: they lie close together
    events: list[RunEvent]
    at: str

    @classmethod
    def read(cls, base: BaseState, view: dict[str, Any], oldest: Cursor, encoded: dict[int, str]) -> "Page":
        """`encoded`: batches by revision that the caller keeps between calls."""
        waiting = batches_since(base.run, oldest.points)
        fresh = [batch for batch in waiting.batches if batch.revision not in encoded]
        encoded |= zip((batch.revision for batch in fresh), texts_of(base.run.pk, fresh), strict=True)
        for revision in sorted(encoded)[:-MOST_ENCODED]:
            del encoded[revision]
        batches = [(batch.revision, batch.num_points, encoded[batch.revision]) for batch in waiting.batches]
        events = events_since(base.run, oldest.events, MAX_EVENTS)
        return cls(base, view, batches, waiting.cursor, waiting.refetch, events, timezone.now().isoformat())

    def since(self, seen: Cursor, mark: str) -> tuple[str, Cursor]:
        """The message for who has seen this, and what it has seen then."""
        lacking = [(count, text) for revision, count, text in self.batches if revision > seen.points]
        refetch = self.refetch or sum(count for count, _ in lacking) > MAX_POINTS
        rows = [event for event in self.events if event.id > seen.events]
        events = [event_row(event) for event in rows]
        cursor = Cursor(self.cursor, settled(rows, seen.events))
        state = self.base.state | {
            "at": self.at,
            "refetch": refetch,
            "cursor": {"points": cursor.points, "events": cursor.events},
            "events": events,
            "tables": self.base.tables_for(mark),
            "view": {**self.view, "events": [event_words(event) for event in events]},
        }
        points = "" if refetch else ",".join(text for count, text in lacking if count)
        return f'{json.dumps(state, separators=(",", ":"))[:-1]},"points":[{points}]}}', cursor
