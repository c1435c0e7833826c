"""Reads of the live page: what is new since a cursor, and the tables drawn from stored episodes."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.core.cache import cache
from django.db.models import Count, Max, Sum
from django.utils import timezone

from apps.metrics import measurements
from apps.metrics.journal import MAX_SERIES
from apps.metrics.models import MetricHead
from apps.metrics.news import json_value, points_since
from apps.metrics.presentation import event_words, view_of
from apps.metrics.reading import Reading, newest_points, read_series
from apps.metrics.registry import describe
from apps.metrics.workers import engines_and_workers
from apps.runs.models import Run, RunEvent
from apps.runs.selectors import events_since, ledger

MAX_EVENTS = 200
_OVERLAP = timedelta(seconds=5)
_CACHE_SECONDS = 120
_RECENT_STEPS = 6


@dataclass(frozen=True)
class Cursor:
    """What a page has seen: the revision of points, the id of events. 0: nothing."""

    points: int = 0
    events: int = 0


def live_state(run: Run, since: Cursor = Cursor(), *, known_tables: str = "") -> dict[str, Any]:
    """Everything a live page needs that is new since `since`: of points each once, in the order of their commits.

    `refetch` True: more than MAX_POINTS, or no longer in the journal; the page loads `series` and goes on from the
    cursor that comes with it. Events of the last seconds come again (their cursor stays behind them), because they
    become visible in the order of their commits, not of their ids; pages keep them by id. `tables` is None when the
    page has them (`known_tables` is the mark of the ones it holds).
    """
    base = base_state(run)
    return base.state | {"tables": base.tables_for(known_tables)} | news_state(run, since)


@dataclass(frozen=True)
class BaseState:
    """All of a `live_state` but its news: what a page shows beside its series. `tables` whole."""

    run: Run
    state: dict[str, Any]
    tables: dict[str, Any]

    def tables_for(self, known: str) -> dict[str, Any] | None:
        return None if self.state["mark"] == known else self.tables


def base_state(run: Run) -> BaseState:
    mark = _mark(run)
    tables = _tables(run, mark)
    state = {
        "run": str(run.pk),
        "strip": strip(run, tables),
        "ledger": _ledger(run),
        "processes": engines_and_workers(run),
        "metrics": _metrics(run),
        "mark": mark,
    }
    return BaseState(run, state, tables)


def news_state(run: Run, since: Cursor) -> dict[str, Any]:
    """Points and events since a cursor: a few statements, however much the run has."""
    news = points_since(run, since.points)
    events = events_since(run, since.events, MAX_EVENTS)
    return {
        "at": timezone.now().isoformat(),
        "refetch": news.refetch,
        "cursor": {"points": news.cursor, "events": settled(events, since.events)},
        "points": news.points,
        "events": [event_row(event) for event in events],
    }


def live_page(run: Run) -> dict[str, Any]:
    """A whole `live_state` with the page's words (`view`): what the page is first drawn from, and then gets pushed."""
    base = base_state(run)
    news = news_state(run, Cursor())
    view = {**view_of(run, base.state, base.tables), "events": [event_words(event) for event in news["events"]]}
    return base.state | {"tables": base.tables} | news | {"view": view}


def series(run: Run, names: list[str] | None = None, **range_: Any) -> list[dict[str, Any]]:
    """Series of a run by name with their words; see `read_series`. NaN and infinities are strings."""
    return describe_series(read_series(run, names, **range_))


def describe_series(reading: Reading) -> list[dict[str, Any]]:
    known = describe(item.name for item in reading.series)
    return [
        {
            **known[item.name],
            "steps": item.steps,
            "values": [json_value(value) for value in item.values],
            "measured": item.measured,
            "num_points": item.num_points,
            "num_not_finite": item.num_odd,
            "whole": item.whole,
        }
        for item in reading.series
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
    times = [time for _, _, time in newest_points(run, "train/train_seconds", _RECENT_STEPS)]
    if len(times) < 2:
        return None
    return left * (max(times) - min(times)) / (len(times) - 1)


def settled(rows: list[Any], previous: int) -> int:
    """The largest id below which nothing can still appear: rows older than the longest transaction."""
    edge = timezone.now() - _OVERLAP
    return max((row.id for row in rows if row.at < edge), default=previous)


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
            "distributions": measurements.distributions(run.pk),
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


def _metrics(run: Run) -> dict[str, int]:
    """How much is stored, and how many points of names beyond the bound were left out."""
    head = MetricHead.objects.filter(pk=run.pk).first() or MetricHead(run=run)
    return {
        "points": head.num_points,
        "series": head.num_series,
        "max_series": MAX_SERIES,
        "refused_points": head.num_refused_points,
    }


def event_row(event: RunEvent) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": event.at.isoformat(),
        "level": event.level,
        "code": event.code,
        "message": event.message,
        "data": event.data,
    }
