"""A gate as its page draws it: tiles with their axes, what a decision would do, history. No statistics here."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.promotions.models import Gate, GateState
from apps.promotions.selectors import GatePage
from apps.runs.models import GroupState

_UNITS = {"pp": "pp", "×": "× production", "turns": "turns", "%": "%"}
_LOOKS = {"pass": "pass", "fail": "fail", "inconclusive": "unsure", "not_measured": ""}
_TAGS = {
    "open": ("queued", "Opened"), "approve": ("pass", "Approved"), "reject": ("fail", "Rejected"),
    "ask_override": ("unsure", "Override asked"), "confirm_override": ("pass", "Override confirmed"),
    "decline_override": ("fail", "Override declined"), "verdict": ("info", "Verdict"),
}  # fmt: skip


@dataclass(frozen=True)
class DrawnTile:
    """One metric. `bad` is the side of harm; `xmin` and `xmax` span interval and limit with some room."""

    tile: dict[str, Any]
    look: str
    word: str
    unit: str
    digits: int
    signed: bool
    drawn: bool
    bad: str = "right"
    xmin: float = 0.0
    xmax: float = 1.0
    limit: float = 0.0
    zero: float | None = None
    label: str = ""


@dataclass(frozen=True)
class GateView:
    title: str
    lead: str
    look: str
    tiles: list[DrawnTile]
    unmeasured: list[DrawnTile]
    arms: list[dict[str, Any]]
    axis_max: float
    spent_before: float  # α of earlier looks at the same set
    history: list[dict[str, Any]]
    decided: str


def gate_view(page: GatePage) -> GateView:
    """Everything of the page that is not the stored report itself."""
    gate, report = page.gate, page.report
    tiles = [draw_tile(tile) for tile in report.get("tiles", [])]
    arms = [arm for arm in report.get("arms", []) if arm["success"] is not None]
    order = {"baseline": 0, "incumbent": 1, "candidate": 2}
    arms.sort(key=lambda arm: (order[arm["role"]], arm["success"]))
    highest = max((arm["high"] for arm in arms), default=1.0)
    return GateView(
        title=title_of(gate),
        lead=report.get("lead", "") or gate.headline,
        look=_LOOKS.get(gate.verdict, ""),
        tiles=[tile for tile in tiles if tile.drawn],
        unmeasured=[tile for tile in tiles if not tile.drawn],
        arms=arms,
        axis_max=min(1.0, max(0.2, (int(highest * 10) + 1) / 10)),
        spent_before=_spent_before(page),
        history=[_history(event) for event in page.history],
        decided=_decided(page),
    )


def _spent_before(page: GatePage) -> float:
    look = getattr(page.gate.evaluation, "look", None)
    return sum(other.alpha for other in page.ledger.looks if look is not None and other.number < look.number)


def title_of(gate: Gate) -> str:
    """The headline, also while there is none."""
    if gate.state == GateState.EVALUATING:
        return f"Measuring {gate.candidate.slug} against {gate.incumbent.slug}"
    if gate.state == GateState.FAILED:
        return "The evaluation failed: there is no verdict"
    return gate.headline


def draw_tile(tile: dict[str, Any]) -> DrawnTile:
    """Axis of one tile: the interval, the limit and no change, with room at both ends."""
    primary = tile["name"] == "success"
    digits = {"pp": 1, "×": 2, "turns": 2}.get(tile["unit"], 1)
    base = DrawnTile(
        tile=tile,
        look=_LOOKS[tile["verdict"]],
        word={"pass": "Pass", "fail": "Fail", "inconclusive": "Inconclusive"}.get(tile["verdict"], "Not measured"),
        unit=_UNITS.get(tile["unit"], ""),
        digits=digits,
        signed=tile["unit"] in ("pp", "turns"),
        drawn=tile["estimate"] is not None,
    )
    if not base.drawn:
        return base
    limit = tile["margin"] if tile["margin"] is not None else 0.0
    zero = 1.0 if tile["unit"] == "×" else 0.0 if base.signed else None
    low = tile["low"] if tile["low"] is not None else tile["estimate"]
    high = tile["high"] if tile["high"] is not None else tile["estimate"]
    values = [low, high, limit, *([zero] if zero is not None else [])]
    room = 0.18 * ((max(values) - min(values)) or 1.0)
    label = (
        f"must beat {limit:g}" if primary else f"limit {limit:g}" if zero == 1.0 else f"margin {limit:g} {tile['unit']}"
    )
    return replace(
        base, bad="left" if primary else "right", xmin=min(values) - room, xmax=max(values) + room, limit=limit,
        zero=None if primary and not limit else zero, label=label,
    )  # fmt: skip


def progress(gate: Gate) -> dict[str, Any]:
    """Counts of the evaluation that is under way, with an estimate in seconds (None: too early)."""
    evaluation = gate.evaluation if gate.state == GateState.EVALUATING else gate.regression
    mark = f"{gate.state}-{gate.verdict}-{gate.regression_result.get('status', '')}"
    if evaluation is None:
        return {"mark": mark, "done": 0, "total": 0, "left_seconds": None, "running": False, "state": ""}
    items = evaluation.items
    done, total = items.filter(group__state=GroupState.CLOSED).count(), items.count()
    left = None
    if evaluation.started_at is not None and 0 < done < total and evaluation.finished_at is None:
        passed = (timezone.now() - evaluation.started_at) / timedelta(seconds=1)
        left = passed / done * (total - done)
    running = evaluation.finished_at is None
    return {
        "mark": mark, "done": done, "total": total, "left_seconds": left, "running": running,
        "state": evaluation.get_state_display(),
    }  # fmt: skip


def _history(event: Any) -> dict[str, Any]:
    action = event.tag.rsplit(":", 1)[-1]
    look, word = _TAGS.get(action, ("info", action.replace("_", " ").capitalize()))
    return {"event": event, "look": look, "word": word}


def _decided(page: GatePage) -> str:
    """What came of it, in one sentence."""
    decision, gate = page.decision, page.gate
    if decision is None or gate.state != GateState.DECIDED:
        return ""
    if decision.kind == "reject":
        return f"{decision.by} rejected {gate.candidate.slug}: {gate.incumbent.slug} stayed in {gate.channel.name}."
    second = f" and {decision.second_by}" if decision.second_by else ""
    verb = "overrode the gate" if decision.kind == "override" else "approved"
    serves = gate.channel.policy_id == gate.candidate_id
    now = "It serves now." if serves else f"It was replaced since: {gate.channel.policy} serves now."
    return f"{decision.by}{second} {verb}: {gate.candidate.slug} went to {gate.channel.name}. {now}"
