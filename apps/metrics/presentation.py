"""The live page's words: strip, time, ledger, events and processes as text. The page and the websocket use the same."""

from datetime import datetime
from typing import Any

from django.urls import reverse

from apps.metrics import finding
from apps.metrics.reading import read_series
from apps.runs.models import Run
from gpu_workers.contracts.runspec import Algorithm
from ratchet.templating import duration

RUN_LOOKS = {
    "queued": "queued", "starting": "live", "running": "live", "paused": "stale", "trained": "live",
    "succeeded": "done", "failed": "fail", "halted": "halted", "cancelled": "",
}  # fmt: skip
_TIME = (
    ("engine", "Engine", 1), ("trainer", "Trainer", 2), ("tool", "Tool wait", 3), ("verifier", "Verifier", 4),
    ("weight_update", "Weight update", 5), ("queue", "Queue", 7), ("idle", "Trainer idle", 0),
)  # fmt: skip
_CLOSED = (
    ("trained", "Trained", "in a step"),
    ("zero_variance", "Zero variance", "rewards all equal: no signal, skipped"),
    ("stale", "Stale", "older than the staleness bound"),
    ("infrastructure_failed", "Infrastructure failed", "tried again until the limit; never scored"),
    ("rejected", "Rejected", "the trainer refused it"),
    ("cancelled", "Cancelled", "the run ended first"),
)
_OPEN = (
    ("batched", "Open: in a batch", "at the trainer"),
    ("ready", "Open: ready", "waits for its batch"),
    ("running", "Open: running", "at a rollout worker"),
    ("pending", "Open: waiting", "not sent yet"),
)
_EVENTS = {
    "queued": "queued", "starting": "queued", "running": "live", "trainer_started": "live", "batch_sent": "live",
    "installed": "done", "step": "done", "succeeded": "done", "trained": "done", "trainer_finished": "done",
    "group_stale": "stale", "paused": "stale", "halted": "halted", "failed": "fail", "attempt_lost": "halted",
}  # fmt: skip
_LEVELS = {"info": "info", "warning": "unsure", "error": "fail"}
_ACTIVITY = {"loading": "Loading", "waiting": "Waits for a batch", "training": "Training", "publishing": "Publishing"}


def is_supervised(run: Run) -> bool:
    return bool(run.spec["algorithm"]["kind"] == Algorithm.SFT)


def view_of(run: Run, state: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """Everything of the page that is text but its events, from a `base_state` and its tables."""
    facts = facts_of(run, state, tables)
    return {
        "headline": finding.headline(facts),
        "lead": finding.lead(facts),
        "strip": _strip(run, state, facts),
        "time": _time(tables["time"]),
        "ledger": _ledger(state["ledger"]),
        "processes": [_process(row) for row in state["processes"]],
        "final": run.finished_at is not None,
        "state": run.state,
    }


def facts_of(run: Run, state: dict[str, Any], tables: dict[str, Any]) -> finding.Facts:
    """Rewards of the first and the newest whole version, losses of the first and the newest step."""
    supervised = is_supervised(run)
    least = run.spec["rollout"]["prompts_per_batch"]
    rewards = [
        {"version": row["version"], **row["reward"]}
        for row in tables["rollouts"]
        if row["reward"] and row["reward"]["groups"] >= least
    ]
    losses = [value for found in read_series(run, ["train/loss"]).series for value in found.values]
    return finding.Facts(
        state=run.state,
        step=run.step,
        total_steps=run.total_steps,
        message=run.status_message,
        supervised=supervised,
        first=rewards[0] if rewards else None,
        newest=state["strip"]["reward"],
        losses=tuple(losses),
        ledger={} if supervised else state["ledger"],
        seconds=tables["time"]["seconds"],
    )


def event_words(event: dict[str, Any]) -> dict[str, Any]:
    """One event with its look and where it leads."""
    data = event["data"]
    return {
        "id": event["id"],
        "at": datetime.fromisoformat(event["at"]).strftime("%H:%M:%S"),
        "state": _EVENTS.get(event["code"], "") if event["level"] == "info" else _LEVELS[event["level"]],
        "glyph": _EVENTS.get(event["code"]) or _LEVELS[event["level"]],
        "word": event["code"].replace("_", " ").capitalize(),
        "message": event["message"],
        "href": reverse("group", args=[data["group"]]) if data.get("group") else "",
    }


def _strip(run: Run, state: dict[str, Any], facts: finding.Facts) -> list[dict[str, str]]:
    strip = state["strip"]
    attempt = next((row["attempt"] for row in state["processes"] if row["kind"] == "trainer"), 0)
    restarts = "no trainer yet" if not attempt else "attempt 1, no restart" if attempt == 1 else f"attempt {attempt}"
    rows = [
        _cell("State", strip["state_label"], "", restarts, look=RUN_LOOKS[run.state]),
        _cell("Step", str(strip["step"]), f"of {strip['total_steps'] or '?'}", _step_words(state)),
        _cell("Policy", f"v{strip['version']}", "", _policy_words(state)),
    ]
    rows += _supervised_cells(facts) if facts.supervised else _reinforced_cells(strip)
    cpu = f"{strip['cpu_seconds']:,.0f}" if strip["cpu_seconds"] else "–"
    return [*rows, _cell("Cost", cpu, "CPU-s", "of the trainer, all attempts"), _left(run, strip)]


def _reinforced_cells(strip: dict[str, Any]) -> list[dict[str, str]]:
    reward, staleness, latency = strip["reward"], strip["staleness"], strip["latency"]
    cells = [_cell("Mean reward", "–", "", "no data yet")]
    if reward:
        interval = "" if reward["low"] is None else f"[{_share(reward['low'])}, {_share(reward['high'])}]"
        detail = f"n = {reward['n']} episodes, v{reward['version']}"
        cells = [_cell("Mean reward", _share(reward["mean"]), interval, detail)]
    if staleness["n"]:
        bound = f"bound {staleness['bound']} · n = {staleness['n']}"
        cells.append(_cell("Staleness", f"{staleness['mean']:.2f}", "mean", bound))
    else:
        cells.append(_cell("Staleness", "–", "", f"bound {staleness['bound']}; no data yet"))
    if latency["n"]:
        both = f"{_seconds(latency['p50'])} · {_seconds(latency['p99'])}"
        cells.append(_cell("Rollout p50 · p99", both, "s", f"n = {latency['n']} newest episodes"))
    else:
        cells.append(_cell("Rollout p50 · p99", "–", "", "no data yet"))
    return cells


def _supervised_cells(facts: finding.Facts) -> list[dict[str, str]]:
    if not facts.losses:
        return [_cell("Loss", "–", "", "no data yet")]
    return [_cell("Loss", f"{facts.losses[-1]:.3f}", "nats", f"{facts.losses[0]:.3f} at step 1")]


def _left(run: Run, strip: dict[str, Any]) -> dict[str, str]:
    if run.finished_at is not None:
        took = (run.finished_at - (run.started_at or run.created_at)).total_seconds()
        return _cell("Took", str(duration(took)), "", run.finished_at.strftime("ended %H:%M:%S"))
    if strip["eta_seconds"] is None:
        return _cell("Left", "–", "", "no estimate yet")
    return _cell("Left", f"≈ {duration(strip['eta_seconds'])}", "", "at the pace of the last steps")


def _step_words(state: dict[str, Any]) -> str:
    trainer = next((row for row in state["processes"] if row["kind"] == "trainer"), None)
    if trainer is None or state["strip"]["finished_at"]:
        return "steps finished"
    return _ACTIVITY.get(trainer["state"], "trainer: " + str(trainer["state"])).lower()


def _policy_words(state: dict[str, Any]) -> str:
    engines = [row for row in state["processes"] if row["kind"] == "engine"]
    if not engines:
        return "not on engines"
    return f"v{state['strip']['confirmed_version']} confirmed on {len(engines)} engine{'s' if len(engines) > 1 else ''}"


def _time(table: dict[str, Any]) -> dict[str, Any]:
    total = table["total"]
    rows = [
        {
            "key": key,
            "name": name,
            "colour": colour,
            "seconds": round(table["seconds"][key], 2),
            "text": f"{_seconds(table['seconds'][key])} s · {100 * table['seconds'][key] / total:.1f} %",
            "meaning": table["definitions"][key],
        }
        for key, name, colour in _TIME
        if table["seconds"][key] > 0
    ]
    return {"total": total, "words": f"{total:,.0f} process-seconds since the start", "rows": rows}


def _ledger(ledger: dict[str, Any]) -> dict[str, Any]:
    size = ledger["group_size"]
    counts = [
        *((*row, ledger["closed"][row[0]]) for row in _CLOSED),
        *((*row, ledger["open"][row[0]]) for row in _OPEN),
    ]
    rows = [
        {"key": key, "name": name, "groups": f"{n:,}", "episodes": f"{n * size:,}", "meaning": words if n else "none"}
        for key, name, words, n in counts
    ]
    parts = " + ".join(str(n) for *_, n in counts if n) or "0"
    total = sum(n for *_, n in counts)
    admitted = ledger["admitted"]
    words = (
        f"adds up: {parts} = {admitted}" if ledger["adds_up"] else f"does not add up: {parts} = {total} ≠ {admitted}"
    )
    return {
        "rows": rows,
        "admitted": f"{admitted:,}",
        "episodes": f"{admitted * size:,}",
        "adds_up": ledger["adds_up"],
        "words": words,
    }


def _process(row: dict[str, Any]) -> dict[str, str]:
    cells = {"name": str(row["name"]), "look": "live", "state": str(row["state"]).capitalize(), "policy": "", "use": ""}
    if row["kind"] == "trainer":
        beat = row["heartbeat_seconds"]
        cells["state"] = _ACTIVITY.get(row["state"], cells["state"])
        cells["use"] = f"{row['cpu_seconds']:,.0f} CPU-s · {row['memory_bytes'] / 2**30:.1f} GiB"
        if row["state"] == "ended":
            cells["look"] = "done"
        elif beat is None or beat > 30:
            cells |= {"look": "stale", "state": f"silent for {duration(beat)}" if beat else "not heard of yet"}
    elif row["kind"] == "engine":
        cells["policy"] = f"v{row['version']} {row['sha256'][:4]}…{row['sha256'][-3:]}" if row["sha256"] else "base"
    elif row.get("oldest_seconds") is not None:
        cells["use"] = f"oldest {duration(row['oldest_seconds'])}"
    return cells


def _cell(term: str, value: str, unit: str, detail: str, look: str = "") -> dict[str, str]:
    return {"term": term, "value": value, "unit": unit, "detail": detail, "look": look}


def _share(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1) if 0 <= value < 1 else f"{value:.2f}".replace("-", "−")


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
