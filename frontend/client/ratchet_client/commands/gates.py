"""gate: list, plan, open, show, decide, confirm."""

import click

from ratchet_client.commands.gate_view import print_gate, verdict_code
from ratchet_client.commands.output import day, mark, when
from ratchet_client.commands.session import Session, in_project, key_option
from ratchet_client.commands.waiting import wait_for
from ratchet_client.errors import RatchetError
from ratchet_client.types import Gate, GateDetail

_timeout = click.option(
    "--timeout", type=click.FloatRange(min=0), default=0, metavar="SECONDS", help="Of --wait; then it ends with 2."
)


@click.group()
def gates() -> None:
    """Candidate against incumbent, and decisions.

    GATE is a number, an id, or `last`.
    """


@gates.command("list")
@click.option("--channel", default="")
@click.option("--state", default="", help="evaluating, waiting, decided or failed.")
@in_project
def list_gates(session: Session, channel: str, state: str) -> None:
    """Gates, newest first."""
    session.output.table(
        session.client.gates.list(project=session.project_filter, channel=channel, state=state),
        [
            ("gate", lambda gate: gate["number"]),
            ("verdict", lambda gate: mark(gate["verdict"])),
            ("state", lambda gate: gate["state"]),
            ("channel", lambda gate: gate["channel"]),
            ("candidate", lambda gate: gate["candidate"]),
            ("incumbent", lambda gate: gate["incumbent"]),
            ("decision", lambda gate: (gate["decision"] or {}).get("kind")),
            ("project", lambda gate: gate["project"]),
            ("opened, UTC", lambda gate: day(gate["created_at"])),
        ],
    )


@gates.command("plan")
@click.option("--suite", required=True, help="slug or slug@version")
@click.option("--gate-policy", default="default", show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True)
@in_project
def plan_gate(session: Session, suite: str, gate_policy: str, samples: int) -> None:
    """What a gate opened now could show. Spends nothing."""
    plan = session.client.gates.plan(project=session.project, suite=suite, gate_policy=gate_policy, samples=samples)
    effect = plan["detectable_effect"]
    fields: dict[str, object] = {
        "held-out tasks": plan["num_tasks"],
        "clusters": f"{plan['num_clusters']}, worth {plan['effective_clusters']:.1f}",
        "look": plan["look"],
        "alpha of this look": plan["alpha"],
        "detectable effect": None if effect is None else f"{effect:.1f} pp at power 0.8",
    }
    session.output.record(plan, fields | {f"warning {n}": text for n, text in enumerate(plan["warnings"], 1)})


@gates.command("open")
@click.argument("candidate", default="")
@click.option("--suite", required=True, help="slug or slug@version")
@click.option("--channel", default="production", show_default=True)
@click.option("--gate-policy", default="default", show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--baseline", "baselines", multiple=True, metavar="POLICY", help="To run beside; repeatable.")
@click.option("--run", default="", help="The run that made the candidate.")
@click.option("--wait", is_flag=True, help="Stay until there is a verdict.")
@_timeout
@key_option
@in_project
def open_gate(
    session: Session,
    candidate: str,
    suite: str,
    channel: str,
    gate_policy: str,
    samples: int,
    baselines: tuple[str, ...],
    run: str,
    wait: bool,
    timeout: float,
    key: str,
) -> int:
    """Compare a candidate with what a channel serves.

    CANDIDATE is a policy, by default the result of --run (a number, an id, or `last`). Both are run afresh on the
    suite's held-out tasks, which spends a look.
    """
    run_id = session.find_run(run) if run else None
    if run_id and not candidate:
        made = session.client.runs.get(run_id)
        candidate = made["result"] or ""
        if not candidate:
            raise RatchetError(f"Run {made['number']} is {made['state']} and has made no policy.")
    if not candidate:
        raise RatchetError("Which candidate?", hint="ratchet gate open POLICY --suite …, or --run last")
    gate = session.client.gates.open(
        project=session.project,
        candidate=candidate,
        suite=suite,
        channel=channel,
        gate_policy=gate_policy,
        samples=samples,
        baselines=list(baselines),
        run=run_id,
        key=key,
    )
    if wait:
        return _wait(session, gate["id"], timeout)
    fields = {"gate": gate["number"], "id": gate["id"], "state": gate["state"]}
    session.output.record(gate, fields | {"page": session.client.page(gate["page"])})
    return 0


@gates.command("show")
@click.argument("gate")
@click.option("--wait", is_flag=True, help="Stay until there is a verdict.")
@_timeout
@in_project
def show_gate(session: Session, gate: str, wait: bool, timeout: float) -> int:
    """The verdict and why. Ends with 0 pass, 1 fail, 2 inconclusive or none yet, 3 when the evaluation failed."""
    gate_id = session.find_gate(gate)
    if wait:
        return _wait(session, gate_id, timeout)
    found = session.client.gates.get(gate_id)
    print_gate(session, found)
    return verdict_code(found)


@gates.command("decide")
@click.argument("gate")
@click.argument("kind", type=click.Choice(["approve", "reject", "override"]))
@click.option("--reason", default="", help="Why; asked for where it is missing.")
@click.option("--evidence", default="", metavar="DIGEST", help="The digest you looked at: decide only on that.")
@click.option("--yes", is_flag=True, help="Do not show and ask; needs --evidence.")
@in_project
def decide_gate(session: Session, gate: str, kind: str, reason: str, evidence: str, yes: bool) -> None:
    """Approve, reject, or ask to override a verdict, on the evidence shown. Nobody decides on what they submitted."""
    found = _look(session, gate, evidence, yes)
    reason = reason or click.prompt("Reason", err=True)
    if not yes:
        click.confirm(f"{kind.capitalize()} {found['candidate']} for {found['channel']}?", abort=True, err=True)
    decided = session.client.gates.decide(
        found["id"], kind, evidence_digest=evidence or found["evidence_digest"], reason=reason
    )
    _print_decision(session, decided)


@gates.command("confirm")
@click.argument("gate")
@click.option("--decline", is_flag=True, help="Disagree: the gate waits again. Needs a reason.")
@click.option("--reason", default="")
@click.option("--evidence", default="", metavar="DIGEST", help="The evidence digest you looked at.")
@click.option("--yes", is_flag=True, help="Do not show and ask; needs --evidence.")
@in_project
def confirm_gate(session: Session, gate: str, decline: bool, reason: str, evidence: str, yes: bool) -> None:
    """The second approver's word on an override."""
    found = _look(session, gate, evidence, yes)
    if not yes:
        click.confirm("Decline the override?" if decline else "Let the override take effect?", abort=True, err=True)
    decided = session.client.gates.confirm(
        found["id"], agree=not decline, evidence_digest=evidence or found["evidence_digest"], reason=reason
    )
    _print_decision(session, decided)


def _look(session: Session, gate: str, evidence: str, yes: bool) -> GateDetail:
    """A decision is on what was seen: it is shown here, or named by its digest."""
    if yes and not evidence:
        raise RatchetError("--yes decides without showing the gate.", hint="Name what you looked at: --evidence DIGEST")
    found = session.client.gates.get(session.find_gate(gate))
    if not yes and not session.output.as_json:
        print_gate(session, found)
    return found


def _print_decision(session: Session, gate: GateDetail) -> None:
    decision = gate["decision"]
    fields: dict[str, object] = {"gate": gate["number"], "state": gate["state"]}
    if decision:
        takes_effect = when(decision["effective_at"]) or "when a second approver confirms"
        fields |= {"decision": f"{decision['kind']} by {decision['by']}", "takes effect": takes_effect}
    session.output.record(gate, fields)


def _wait(session: Session, gate_id: str, limit_seconds: float) -> int:
    found = wait_for(
        session.output,
        lambda: session.impatient.gates.get(gate_id),
        is_over=lambda gate: gate["state"] != "evaluating",
        progress=_progress,
        limit_seconds=limit_seconds,
    )
    print_gate(session, found)
    return verdict_code(found)


def _progress(gate: Gate | GateDetail) -> tuple[str, int, int]:
    return f"gate {gate['number']}: {gate['state']}", gate["progress"]["done"], gate["progress"]["total"]
