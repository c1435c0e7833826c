"""A gate in a terminal: the verdict in words, a line per metric, who may do what."""

from typing import Any

from ratchet_client.commands.output import Column, ExitCode, mark, percent, when
from ratchet_client.commands.session import Session
from ratchet_client.types import GateDetail

_CODES = {"pass": ExitCode.PASS, "fail": ExitCode.FAIL}


def verdict_code(gate: GateDetail) -> int:
    """0 pass, 1 fail, 2 inconclusive or not known yet; 3 when the evaluation itself failed."""
    if gate["state"] == "failed":
        return ExitCode.ERROR
    return _CODES.get(str(gate["verdict"]), ExitCode.INCONCLUSIVE)


def print_gate(session: Session, gate: GateDetail) -> None:
    """Everything a decision rests on; the page has the pictures."""
    output, report = session.output, gate["report"]
    decision, ledger = gate["decision"], gate["ledger"]
    decided = f"{decision['kind']} by {decision['by']}: {decision['reason'] or 'no reason given'}" if decision else None
    fields: dict[str, object] = {
        "gate": f"{gate['number']}, {gate['candidate']} against {gate['incumbent']} for {gate['channel']}",
        "verdict": mark(gate["verdict"]) if gate["verdict"] else gate["state"],
        "": gate["headline"] or None,
        "suite": f"{gate['suite']}, rules {gate['gate_policy']}",
        "attempts": f"{gate['progress']['done']} of {gate['progress']['total']} groups",
        "alpha": f"{ledger['spent']:.4g} of {ledger['alpha']:.4g} spent in {len(ledger['looks'])} looks",
        "decision": decided,
        "you may": ", ".join(_possible(gate["allowed"])) or f"not decide: {gate['allowed']['why_not']}",
        "evidence": gate["evidence_digest"],
        "opened": f"{when(gate['created_at'])} by {gate['submitted_by']}",
        "page": session.client.page(gate["page"]),
    }
    output.record(gate, fields)
    if output.as_json or not report:
        return
    output.say()
    output.table(report.get("tiles", []), _TILES)
    if report.get("arms"):
        output.say()
        output.table(report["arms"], _ARMS)
    for reason in report.get("blocks", []):
        output.say(f"blocked: {reason}")


def _possible(allowed: Any) -> list[str]:
    return [name for name in ("approve", "reject", "override", "confirm", "rollback") if allowed[name]]


def _change(tile: dict[str, Any]) -> str | None:
    """Estimate with its interval; an end that is not known is infinite."""
    if tile["estimate"] is None:
        return None
    low = "−∞" if tile["low"] is None else f"{tile['low']:.3g}"
    high = "∞" if tile["high"] is None else f"{tile['high']:.3g}"
    return f"{tile['estimate']:.3g} [{low}, {high}] {tile['unit']}".strip()


_TILES: list[Column] = [
    ("metric", lambda tile: tile["title"]),
    ("verdict", lambda tile: mark(tile["verdict"])),
    ("needed", lambda tile: tile["required"]),
    ("change", _change),
    ("margin", lambda tile: tile["margin"]),
    ("tasks", lambda tile: tile["n"]),
    ("", lambda tile: tile["words"]),
]
_ARMS: list[Column] = [
    ("arm", lambda arm: arm["label"]),
    ("role", lambda arm: arm["role"]),
    ("success", lambda arm: percent(arm["success"])),
    ("95 %", lambda arm: None if arm["low"] is None else f"{percent(arm['low'])} to {percent(arm['high'])}"),
    ("n", lambda arm: arm["n"]),
    ("missing", lambda arm: arm["num_missing"]),
]
