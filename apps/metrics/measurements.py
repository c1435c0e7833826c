"""What the platform measures from stored episodes: one cheap statement per table of the live page."""

from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, Sum
from scipy.special import stdtrit

from apps.metrics import histograms
from apps.metrics.models import MetricHistogram
from apps.metrics.reading import totals
from apps.metrics.sketch import Sketch, from_json, merged
from apps.runs.models import Episode, Group, Outcome, Run

RECENT_EPISODES = 1000
HISTOGRAM_BINS = 10
_CONFIDENCE = 0.95


def measure_step(batch_id: str | UUID) -> dict[str, float | None]:
    """The episodes of one batch, recomputed: names as in the registry."""
    row = _one(
        """
        SELECT avg(e.reward), avg(e.success::int) FILTER (WHERE e.reward IS NOT NULL),
               percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY e.total_seconds),
               avg(e.tool_seconds), avg(e.num_sampled_tokens), avg(e.num_turns),
               sum(e.num_invalid_calls)::float / nullif(sum(e.num_tool_calls), 0), avg(g.age),
               sum(greatest(0, e.engine_seconds - e.queue_seconds)), sum(e.tool_seconds), sum(e.verifier_seconds),
               sum(e.queue_seconds)
        FROM runs_episode e JOIN runs_group g ON g.id = e.group_id
        WHERE g.batch_id = %s AND g.outcome = 'trained'
        """,
        [str(batch_id)],
    )
    (waited,) = _one(
        """
        SELECT sum(greatest(0, extract(epoch FROM started_at - dispatched_at)) * size)
        FROM runs_group WHERE batch_id = %s AND outcome = 'trained' AND started_at IS NOT NULL
        """,
        [str(batch_id)],
    )
    reward, success, latency, *means = row[:8]
    engine, tool, verifier, queue = row[8:]
    values = (reward, success, *(latency or [None] * 4), *means)
    names = (
        "reward_mean", "success_share", "latency_p50_seconds", "latency_p90_seconds", "latency_p95_seconds",
        "latency_p99_seconds", "tool_seconds_mean", "num_sampled_tokens_mean", "num_turns_mean", "invalid_call_share",
        "staleness_mean",
    )  # fmt: skip
    measured = {f"rollout/{name}": _number(value) for name, value in zip(names, values, strict=True)}
    return measured | {
        "time/engine_seconds": _number(engine),
        "time/tool_seconds": _number(tool),
        "time/verifier_seconds": _number(verifier),
        "time/queue_seconds": None if queue is None else float(queue) + float(waited or 0),
    }


def errors_by_boundary(group: Group) -> dict[str, float | None]:
    """Episodes of a stored group by whose failure ended them; boundaries without any are no points."""
    rows = group.episodes.exclude(boundary="").values_list("boundary").annotate(n=Count("id")).order_by()
    return {f"errors/{boundary}": float(count) for boundary, count in rows}


def rollouts_by_version(run_id: UUID) -> list[dict[str, Any]]:
    """Per generating version: counts, latency and tool-wait percentiles, lengths. Dropped groups are in it too."""
    rows = _all(
        """
        SELECT g.policy_version, count(DISTINCT g.id), count(e.id),
               avg(e.success::int) FILTER (WHERE e.reward IS NOT NULL),
               avg(e.num_sampled_tokens), avg(e.num_turns),
               sum(e.num_invalid_calls)::float / nullif(sum(e.num_tool_calls), 0),
               count(e.id) FILTER (WHERE e.max_version > e.min_version)
        FROM runs_episode e JOIN runs_group g ON g.id = e.group_id
        WHERE g.run_id = %s GROUP BY 1 ORDER BY 1
        """,
        [run_id],
    )
    rewards = rewards_by_version(run_id)
    latency, tool_wait = (histograms.by_position(run_id, name) for name in (histograms.LATENCY, histograms.TOOL_WAIT))
    none = Sketch()
    return [
        {
            "version": version,
            "groups": groups,
            "episodes": episodes,
            "reward": rewards.get(version),
            "success": _number(success),
            "latency": percentiles(latency.get(version, none)),
            "tool_wait": percentiles(tool_wait.get(version, none)),
            "sampled_tokens_mean": _number(tokens),
            "turns_mean": _number(turns),
            "invalid_call_share": _number(invalid),
            "spanning_episodes": spanning,
        }
        for version, groups, episodes, success, tokens, turns, invalid, spanning in rows
    ]


def distributions(run_id: UUID) -> dict[str, dict[str, Any]]:
    """Every histogram of the run merged over its versions (or steps): count, mean, percentiles, largest."""
    rows = MetricHistogram.objects.filter(run_id=run_id).order_by("name", "position").values_list("name", "sketch")
    by_name: dict[str, list[Sketch]] = {}
    for name, sketch in rows:
        by_name.setdefault(name, []).append(from_json(sketch))
    whole = {name: merged(sketches) for name, sketches in by_name.items()}
    return {
        name: {"n": s.count, "mean": s.mean, "min": s.low, **percentiles(s)} for name, s in whole.items() if s.count
    }


def percentiles(sketch: Sketch) -> dict[str, float | None]:
    """p50, p90, p95, p99 (within 1 %) and the largest; None of nothing."""
    names = ("p50", "p90", "p95", "p99")
    found = dict(zip(names, sketch.quantiles([0.5, 0.9, 0.95, 0.99]), strict=True))
    return found | {"max": sketch.high if sketch.count else None}


def rewards_by_version(run_id: UUID) -> dict[int, dict[str, Any]]:
    """Mean reward with a 95 % interval. Episodes of a group share a task, so the group is the unit."""
    rows = _all(
        """
        SELECT policy_version, count(*), sum(num_scored), avg(reward_mean), stddev_samp(reward_mean)
        FROM runs_group WHERE run_id = %s AND num_scored > 0 AND outcome <> 'rejected' GROUP BY 1
        """,
        [run_id],
    )
    return {version: _interval(groups, scored, mean, spread) for version, groups, scored, mean, spread in rows}


def _interval(groups: int, scored: int, mean: float, spread: float | None) -> dict[str, Any]:
    low = high = None
    if groups > 1 and spread is not None:
        half = float(stdtrit(groups - 1, 0.5 + _CONFIDENCE / 2)) * spread / groups**0.5
        low, high = mean - half, mean + half
    return {"mean": mean, "low": low, "high": high, "n": scored, "groups": groups}


def reward_histogram(run_id: UUID) -> dict[str, Any]:
    """Episodes by version and reward; `edges` are the bins' lower ends, the last bin holds its upper end."""
    found = histograms.by_position(run_id, histograms.REWARD)
    low = min([0.0, *(sketch.low for sketch in found.values() if sketch.count)])
    high = max([1.0, *(sketch.high for sketch in found.values() if sketch.count)])
    width = (high - low) / HISTOGRAM_BINS
    edges = [round(low + index * width, 6) for index in range(HISTOGRAM_BINS)]
    rows = [{"version": version, "counts": found[version].bins([*edges, high])} for version in sorted(found)]
    return {"edges": edges, "width": width, "rows": rows}


def staleness(run: Run) -> dict[str, Any]:
    """Episodes trained on by age in versions, and groups dropped as too old."""
    rows = run.groups.filter(outcome=Outcome.TRAINED).values_list("age").annotate(n=Sum("num_scored")).order_by("age")
    counts = {int(age or 0): int(n or 0) for age, n in rows}
    total = sum(counts.values())
    return {
        "bound": run.spec["rollout"]["max_staleness"],
        "counts": counts,
        "mean": sum(age * n for age, n in counts.items()) / total if total else None,
        "n": total,
        "dropped_groups": run.groups.filter(outcome=Outcome.STALE).count(),
    }


def recent_latency(run_id: UUID) -> dict[str, Any]:
    """Percentiles of total episode time over the newest episodes."""
    row = _one(
        """
        SELECT count(*), percentile_cont(ARRAY[0.5, 0.9, 0.95, 0.99]) WITHIN GROUP (ORDER BY recent.total_seconds)
        FROM (SELECT e.total_seconds FROM runs_episode e JOIN runs_group g ON g.id = e.group_id
              WHERE g.run_id = %s ORDER BY e.id DESC LIMIT %s) recent
        """,
        [run_id, RECENT_EPISODES],
    )
    return {"n": row[0], **_named(row[1], ("p50", "p90", "p95", "p99"))}


TIME_DEFINITIONS = {
    "engine": "Episodes waited for tokens that the engine was computing.",
    "tool": "Episodes waited for their tool calls.",
    "verifier": "Episodes were judged.",
    "queue": "Groups waited for a rollout worker, and requests for the engine.",
    "trainer": "The trainer computed.",
    "weight_update": "Checkpoints were made durable and installed on the engines.",
    "idle": "The trainer waited for a batch.",
}


def where_the_time_goes(run: Run) -> dict[str, Any]:
    """Seconds since the start by kind, summed over concurrent episodes and the trainer: not wall-clock time."""
    engine, queue, tool, verifier = _one(
        """
        SELECT coalesce(sum(greatest(0, e.engine_seconds - e.queue_seconds)), 0), coalesce(sum(e.queue_seconds), 0),
               coalesce(sum(e.tool_seconds), 0), coalesce(sum(e.verifier_seconds), 0)
        FROM runs_episode e JOIN runs_group g ON g.id = e.group_id WHERE g.run_id = %s
        """,
        [run.pk],
    )
    (waited,) = _one(
        """
        SELECT coalesce(sum(greatest(0, extract(epoch FROM started_at - dispatched_at)) * size), 0)
        FROM runs_group WHERE run_id = %s AND started_at IS NOT NULL
        """,
        [run.pk],
    )
    trainer = totals(run, ["train/train_seconds", "train/wait_seconds", "train/publish_seconds"])
    installed = run.installs.aggregate(total=Sum("duration_seconds"))["total"] or 0.0
    seconds = {
        "engine": float(engine),
        "tool": float(tool),
        "verifier": float(verifier),
        "queue": float(queue) + float(waited),
        "trainer": trainer.get("train/train_seconds", 0.0),
        "weight_update": trainer.get("train/publish_seconds", 0.0) + installed,
        "idle": trainer.get("train/wait_seconds", 0.0),
    }
    return {"seconds": seconds, "total": sum(seconds.values()), "definitions": TIME_DEFINITIONS}


def failures(run: Run) -> dict[str, Any]:
    """Failures by boundary: episodes without or with a failing verdict for a reason, and failed dispatches."""
    episodes = Episode.objects.filter(group__run=run).exclude(boundary="").values_list("boundary")
    reasons = Episode.objects.filter(group__run=run).exclude(reason_code="OK").values_list("reason_code")
    dispatches = run.events.filter(code="group_failed").values_list("data__boundary")
    return {
        "episodes": dict(episodes.annotate(n=Count("id")).order_by("-n")),
        "dispatches": dict(dispatches.annotate(n=Count("id")).order_by("-n")),
        "reasons": dict(reasons.annotate(n=Count("id")).order_by("-n")[:20]),
    }


def _all(sql: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def _one(sql: str, parameters: list[Any]) -> tuple[Any, ...]:
    return _all(sql, parameters)[0]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _named(values: list[float] | None, names: tuple[str, ...]) -> dict[str, float | None]:
    if values is None:
        return dict.fromkeys(names)
    return dict(zip(names, values, strict=True))
