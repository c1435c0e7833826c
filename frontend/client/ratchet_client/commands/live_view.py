"""The picture of a live run in a terminal: bar, numbers, processes, ledger, the newest events."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ratchet_client.commands.output import Column, cell, make_table, mark, seconds, when
from ratchet_client.feed import Update
from ratchet_client.untrusted import printable

_NUM_EVENTS = 6
_REWARDS = "rollout/reward_mean"
_BARS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Takes updates and draws the newest. Without one it says that it is asking."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.away = ""
        self.live: dict[str, Any] | None = None
        self.events: deque[dict[str, Any]] = deque(maxlen=_NUM_EVENTS)
        self.rewards: dict[int, float] = {}

    def take(self, update: Update | None, away: str) -> None:
        """An update, or None while the server is away."""
        self.away = away
        if update is None:
            return
        self.live = update.live
        self.events.extend(update.events)
        for series in update.series or []:
            if series["name"] == _REWARDS:
                self._add(zip(series["steps"], series["values"], strict=True))
        self._add((point.step, point.value) for point in update.points if point.name == _REWARDS)

    def _add(self, rewards: Iterable[tuple[int, float | str]]) -> None:
        self.rewards |= {step: value for step, value in rewards if not isinstance(value, str)}

    def summary(self) -> str:
        """One line for logs."""
        if self.away or self.live is None:
            return f"{self.title}: {self.away or 'asking …'}"
        strip = self.live["strip"]
        words = [f"{self.title}: {strip['state']}", f"step {strip['step']}/{strip['total_steps']}"]
        if strip["reward"]:
            words.append(f"reward {strip['reward']['mean']:.3f}")
        words += [f"{count} groups {name}" for name, count in _counts(self.live["ledger"])]
        return ", ".join(words)

    def __rich__(self) -> RenderableType:
        head = Text(printable(self.title) + "   ")
        if self.live is None:
            return head.append(self.away or "asking …", style="yellow")
        strip = self.live["strip"]
        head.append_text(mark(strip["state"])).append("   ")
        head.append(self.away or "live", style="yellow" if self.away else "green")
        parts: list[RenderableType] = [head, _bar(strip), self._numbers(strip)]
        if self.live["processes"]:
            parts += [Text(), make_table(self.live["processes"], _PROCESSES)]
        if self.events:
            parts.append(Text())
            table = make_table(self.events, _EVENTS)
            table.show_header = False
            parts.append(table)
        return Group(*parts, Text("Ctrl-C stops watching; the run goes on.", style="dim"))

    def _numbers(self, strip: dict[str, Any]) -> Table:
        reward, latency, staleness = strip["reward"], strip["latency"], strip["staleness"]
        table = Table.grid(padding=(0, 2))
        rows: dict[str, object] = {
            "why": strip["status_message"],
            "reward": _reward(reward),
            "by step": _sparkline([self.rewards[step] for step in sorted(self.rewards)]),
            "version": f"{strip['version']}, {strip['confirmed_version']} served",
            "staleness": f"{staleness['mean']:.2f} of at most {staleness['bound']} (n={staleness['n']})"
            if staleness["mean"] is not None
            else None,
            "episode": f"p50 {seconds(latency['p50'])}, p99 {seconds(latency['p99'])} (n={latency['n']})"
            if latency["n"]
            else None,
            "groups": ", ".join(f"{count} {name}" for name, count in _counts(self.live["ledger"] if self.live else {})),
            "trainer CPU": seconds(strip["cpu_seconds"]),
        }
        for name, value in rows.items():
            table.add_row(Text(name, style="dim"), cell(value))
        return table


_EVENTS: list[Column] = [
    ("", lambda event: when(event["at"])),
    ("", lambda event: event["level"]),
    ("", lambda event: event["message"]),
]
_PROCESSES: list[Column] = [
    ("process", lambda row: row["kind"]),
    ("name", lambda row: row["name"]),
    ("state", lambda row: row["state"]),
    ("version", lambda row: row.get("version")),
    ("heartbeat", lambda row: seconds(row.get("heartbeat_seconds"))),
]


def _bar(strip: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 1))
    total = max(strip["total_steps"], 1)
    left = seconds(strip["eta_seconds"])
    words = f"step {strip['step']} of {strip['total_steps']}" + (f", about {left} left" if left else "")
    table.add_row(ProgressBar(total=total, completed=min(strip["step"], total), width=40), Text(words))
    return table


def _reward(reward: dict[str, Any] | None) -> str | None:
    if reward is None:
        return None
    bounds = f" [{reward['low']:.3f}, {reward['high']:.3f}]" if reward["low"] is not None else ""
    return f"{reward['mean']:.3f}{bounds} at version {reward['version']} (n={reward['n']})"


def _sparkline(values: list[float], width: int = 40) -> str:
    """The newest values as bars between their least and greatest."""
    shown = values[-width:]
    if len(shown) < 2:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown) + f"  {low:.3f} to {high:.3f}"


def _counts(ledger: dict[str, Any]) -> list[tuple[str, int]]:
    counts = {**ledger.get("open", {}), **ledger.get("closed", {})}
    return [(name.replace("_", " "), count) for name, count in counts.items() if count]
