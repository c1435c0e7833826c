"""What a run's numbers say, in one sentence and a few more: the headline of its page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import hypot
from statistics import fmean, stdev
from typing import Any

from apps.runs.models import RunState


@dataclass(frozen=True)
class Facts:
    """What the headline is made of. `first` and `newest` are rewards (mean, low, high, n, version) or None."""

    state: str
    step: int
    total_steps: int
    message: str
    supervised: bool = False
    first: dict[str, Any] | None = None
    newest: dict[str, Any] | None = None
    losses: tuple[float, ...] = ()  # of every step so far
    ledger: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


_STOPPED = {
    RunState.FAILED: "Failed",
    RunState.HALTED: "Stopped itself",
    RunState.CANCELLED: "Cancelled",
    RunState.PAUSED: "Paused",
}
_Z = 1.96
_LEAST, _MOST = 4, 10  # steps at each end that a loss is averaged over; with fewer nothing is claimed
_TIME_WORDS = {"engine": "the engine", "tool": "tools", "verifier": "the verifier", "queue": "the queue"}


def headline(facts: Facts) -> str:
    """The finding. Only an interval that excludes no change says "learning" or "falling"."""
    place = f"at step {facts.step} of {facts.total_steps}" if facts.total_steps else "before its first step"
    if facts.state == RunState.QUEUED:
        return "Waiting for its turn"
    if facts.state in _STOPPED:
        return f"{_STOPPED[RunState(facts.state)]} {place}"
    if facts.state == RunState.SUCCEEDED:
        return _result(facts)
    if facts.supervised:
        return _supervised(facts, place)
    if facts.newest is None:
        return "Starting: the first episodes are being generated"
    change = trend(facts.first, facts.newest)
    words = {1: "Learning", -1: "Reward is falling", 0: "No clear change in reward yet"}[change]
    if facts.state == RunState.TRAINED:
        return f"Trained, choosing a checkpoint. {words}" if change else "Trained, choosing a checkpoint"
    return f"{words}, {place}"


def lead(facts: Facts) -> str:
    """The numbers behind the headline, with what was lost on the way."""
    parts = []
    if facts.state in (*_STOPPED, RunState.QUEUED) and facts.message:
        parts.append(facts.message)
    if facts.losses and facts.supervised:
        (first, _), (newest, _), size = _ends(facts.losses)
        parts.append(f"The loss went from {first:.3f} to {newest:.3f} nats per token (means of {size} steps each).")
    if facts.first and facts.newest and facts.first["version"] != facts.newest["version"]:
        a, b = facts.first, facts.newest
        parts.append(
            f"Reward went from {_share(a['mean'])} to {_share(b['mean'])} between versions {a['version']} and "
            f"{b['version']} (n = {a['n']} and {b['n']} episodes)."
        )
    elif facts.newest:
        parts.append(f"Mean reward is {_share(facts.newest['mean'])} (n = {facts.newest['n']} episodes).")
    parts += _losses_of_groups(facts.ledger)
    if sentence := _slowest(facts.seconds):
        parts.append(sentence)
    return " ".join(parts) or facts.message or "No data yet."


def trend(first: dict[str, Any] | None, newest: dict[str, Any] | None) -> int:
    """1 up, −1 down, 0 undecided: the difference against the combined half-widths of both 95 % intervals."""
    if not first or not newest or first["version"] == newest["version"]:
        return 0
    if first["low"] is None or newest["low"] is None:
        return 0
    change = newest["mean"] - first["mean"]
    half = hypot(first["mean"] - first["low"], newest["mean"] - newest["low"])
    return 0 if abs(change) <= half else (1 if change > 0 else -1)


def _result(facts: Facts) -> str:
    if facts.supervised:
        return f"Finished: {facts.step} supervised steps"
    words = {1: "Learned", -1: "Finished with less reward than at the start", 0: "Finished without a clear gain"}
    change = trend(facts.first, facts.newest)
    if change > 0 and facts.first and facts.newest:
        rise = f"reward rose from {_share(facts.first['mean'])} to {_share(facts.newest['mean'])}"
        return f"Learned: {rise} in {facts.step} steps"
    return f"{words[change]} in training reward, after {facts.step} steps"


def _supervised(facts: Facts, place: str) -> str:
    if not facts.losses:
        return "Starting: the trainer loads"
    if facts.state == RunState.TRAINED:
        return f"Trained, {place}"
    (first, first_error), (newest, newest_error), _ = _ends(facts.losses)
    change, half = newest - first, _Z * hypot(first_error, newest_error)
    if len(facts.losses) < 2 * _LEAST or abs(change) <= half:
        return f"Training, {place}"
    return f"Loss is {'falling' if change < 0 else 'rising'}, {place}"


def _ends(losses: Sequence[float]) -> tuple[tuple[float, float], tuple[float, float], int]:
    """Mean and standard error over the first and over the last steps, and how many those are."""
    size = max(1, min(_MOST, len(losses) // 2))
    return _mean(losses[:size]), _mean(losses[-size:]), size


def _mean(values: Sequence[float]) -> tuple[float, float]:
    mean = fmean(values)
    return mean, stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _losses_of_groups(ledger: dict[str, Any]) -> list[str]:
    closed = ledger.get("closed", {})
    total = sum(closed.values())
    if not total:
        return []
    parts = []
    if closed["zero_variance"]:
        share = closed["zero_variance"] / total
        parts.append(f"{closed['zero_variance']} of {total} closed groups carried no signal ({share:.0%}).")
    if closed["stale"]:
        parts.append(f"{closed['stale']} came too late for the staleness bound.")
    if closed["infrastructure_failed"]:
        parts.append(f"{closed['infrastructure_failed']} failed by infrastructure and were not scored.")
    return parts


def _slowest(seconds: dict[str, float]) -> str:
    """Where an episode's time goes."""
    parts = {name: seconds.get(name, 0.0) for name in _TIME_WORDS}
    total = sum(parts.values())
    if total < 1:
        return ""
    name = max(parts, key=lambda key: parts[key])
    return f"Of the episodes' time, {parts[name] / total:.0%} went to {_TIME_WORDS[name]}."


def _share(value: float) -> str:
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0.") else text
