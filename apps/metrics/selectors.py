"""Reads of the live page: what is new since a cursor, and the tables drawn from stored episodes."""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.cache import cache
from django.db.models import Count, Max, QuerySet, Sum
from django.utils import timezone

from apps.metrics import measurements
from apps.metrics.models import Point
from apps.metrics.presentation import view_of
from apps.metrics.registry import describe
from apps.metrics.workers import engines_and_workers
from apps.runs.models import Run, RunEvent
from apps.runs.selectors import events_since, ledger

MAX_POINTS = 5000  # more than this since a cursor: the page starts afresh
MAX_EVENTS = 200
_OVERLAP = timedelta(seconds=5)
_CACHE_SECONDS = 120
_RECENT_STEPS = 6


@dataclass(frozen=True)
class Cursor:
    """What a page has seen: ids of points and events. 0: nothing."""

    points: int = 0
    events: int = 0


def live_state(run: Run, since: Cursor = Cursor(), *, known_tables: str = "") -> dict[str, Any]:
    """Everything a live page needs that is new since `since`.

    `refetch` True: too much; the page loads `series` and goes on from `cursor`.

    Points and events of the last seconds come again (`cursor` stays behind them), because rows become visible in
    the order of their commits, not of their ids. Pages keep them by id. `tables` is None when the page has them
    (`known_tables` is the mark of the ones it holds).
    """
    points = _points_since(run, since.points)
    refetch = len(points) > MAX_POINTS
    events = events_since(run, since.events, MAX_EVENTS)
    mark = _mark(run)
    tables = None if mark == known_tables else _tables(run, mark)
    return {
        "run": str(run.pk),
        "at": timezone.now().isoformat(),
        "refetch": refetch,
        "cursor": {
            "points": _newest_settled(run) if refetch else _settled(points, since.points),
            "events": _settled(events, since.events),
        },
        "points": [] if refetch else [_point(point) for point in points],
        "events": [_event(event) for event in events],
        "strip": strip(run, tables or _tables(run, mark)),
        "ledger": _ledger(run),
        "processes": engines_and_workers(run),
        "mark": mark,
        "tables": tables,
    }


def live_page(run: Run, since: Cursor = Cursor(), *, known_tables: str = "") -> dict[str, Any]:
    """A `live_state` with the page's words (`view`): what the page is first drawn from, and what its socket gets."""
    state = live_state(run, since, known_tables=known_tables)
    tables = state["tables"] or _tables(run, state["mark"])
    return {**state, "view": view_of(run, state, tables)}


def series(run: Run, names: list[str] | None = None) -> list[dict[str, Any]]:
    """Series of a run, whole, by name; of a step that two attempts made, the later attempt's value."""
    points: QuerySet[Point] = run.points.order_by("name", "step", "attempt", "id")
    if names:
        points = points.filter(name__in=names)
    grouped: dict[str, dict[Any, Point]] = {}
    for point in points:
        # Several groups share a version: those points stay apart.
        key = point.id if point.name.startswith("group/") else point.step
        grouped.setdefault(point.name, {})[key] = point
    known = describe(grouped)
    return [
        {
            **known[name],
            "steps": [point.step for point in chosen.values()],
            "values": [_finite(point.value) for point in chosen.values()],
            "measured": next(iter(chosen.values())).measured,
        }
        for name, chosen in grouped.items()
    ]


def strip(run: Run, tables: dict[str, Any]) -> dict[str, Any]:
    """The numbers at the top of the page."""
    return {
        "state": run.state,
        "state_label": run.get_state_display(),
        "status_code": run.status_code,
        "status_message": run.status_message,
        "step": run.step,
        "total_steps": run.total_steps,
        "version": run.version,
        "confirmed_version": run.confirmed_version,
        "reward": newest_reward(tables["rollouts"], run.spec["rollout"]["prompts_per_batch"]),
        "staleness": {key: tables["staleness"][key] for key in ("mean", "bound", "n")},
        "latency": tables["latency"],
        "cpu_seconds": run.attempts.aggregate(total=Sum("cpu_seconds"))["total"] or 0.0,
        "eta_seconds": eta_seconds(run),
        "started_at": run.started_at.isoformat() if run.started_at else None,
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
    }


def newest_reward(rollouts: list[dict[str, Any]], batch_size: int) -> dict[str, Any] | None:
    """Reward of the newest version that has a whole batch of groups; of a younger run, of the newest there is."""
    scored = [row for row in rollouts if row["reward"] is not None]
    whole = [row for row in scored if row["reward"]["groups"] >= batch_size]
    chosen = (whole or scored)[-1:] or None
    return None if chosen is None else {"version": chosen[0]["version"], **chosen[0]["reward"]}


def eta_seconds(run: Run) -> float | None:
    """Steps left times the mean time between the last steps; None before the second step and when it is over."""
    left = run.total_steps - run.step
    if left <= 0 or run.finished_at is not None:
        return None
    times = list(
        run.points.filter(name="train/train_seconds").order_by("-step").values_list("at", flat=True)[:_RECENT_STEPS]
    )
    if len(times) < 2:
        return None
    return left * (max(times) - min(times)).total_seconds() / (len(times) - 1)


def _points_since(run: Run, cursor: int) -> list[Point]:
    return list(run.points.filter(id__gt=cursor).order_by("id")[: MAX_POINTS + 1])


def _settled(rows: list[Any], previous: int) -> int:
    """The largest id below which nothing can still appear: rows older than the longest transaction."""
    edge = timezone.now() - _OVERLAP
    return max((row.id for row in rows if row.at < edge), default=previous)


def _newest_settled(run: Run) -> int:
    return run.points.filter(at__lt=timezone.now() - _OVERLAP).aggregate(last=Max("id"))["last"] or 0


def _mark(run: Run) -> str:
    """Changes exactly when the tables change."""
    groups = run.groups.aggregate(n=Count("id"), last=Max("finished_at"), tries=Sum("dispatch"))
    last = groups["last"].timestamp() if groups["last"] else 0
    return f"{groups['n']}-{last:.6f}-{groups['tries']}-{run.step}-{run.confirmed_version}"


def _tables(run: Run, mark: str) -> dict[str, Any]:
    """The tables, computed once per change for all who watch."""
    key = f"live-tables-{run.pk}-{mark}"
    tables: dict[str, Any] | None = cache.get(key)
    if tables is None:
        tables = {
            "rollouts": measurements.rollouts_by_version(run.pk),
            "reward_histogram": measurements.reward_histogram(run.pk),
            "staleness": measurements.staleness(run),
            "latency": measurements.recent_latency(run.pk),
            "time": measurements.where_the_time_goes(run),
            "failures": measurements.failures(run),
        }
        cache.set(key, tables, _CACHE_SECONDS)
    return tables


def _ledger(run: Run) -> dict[str, Any]:
    counts = ledger(run)
    return {
        "admitted": counts.admitted,
        "open": dict(counts.open),
        "closed": dict(counts.closed),
        "adds_up": counts.adds_up,
        "group_size": run.spec["rollout"]["group_size"],
    }


def _point(point: Point) -> list[Any]:
    return [point.id, point.name, point.step, _finite(point.value), point.attempt, point.measured]


def _event(event: RunEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": event.at.isoformat(),
        "level": event.level,
        "code": event.code,
        "message": event.message,
        "data": event.data,
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
