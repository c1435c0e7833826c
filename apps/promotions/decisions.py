"""Decisions of people on gates: approve, reject, override with a second approver. All audited with what was seen."""

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.policies.models import MoveKind
from apps.policies.selectors import why_not_served
from apps.policies.services import move_channel
from apps.promotions.collection import evidence_digest as digest_now
from apps.promotions.models import Decision, DecisionKind, Gate, GateState, GateVerdict
from apps.promotions.regression import start_regression
from apps.promotions.states import move_gate
from ratchet.problems import Problem

_MIN_REASON = 10


@transaction.atomic
def decide(*, gate: Gate, kind: str, by: User, reason: str = "", evidence_digest: str) -> Decision:
    """Approve (only on pass), reject, or ask to override. An override waits for a second approver.

    Raises Problem 403 for who submitted what is judged; 409 `evidence_changed` when what was on screen is not what
    is stored, `incumbent_changed` when the channel has moved since, `not_passed` for an approval without a pass.
    """
    gate = _lock(gate)
    if kind not in DecisionKind.values:
        raise _invalid("kind", f"{kind!r} is not one of {', '.join(DecisionKind.values)}")
    override = kind == DecisionKind.OVERRIDE
    _check_decider(gate, by, Permission.GATE_OVERRIDE if override else Permission.GATE_DECIDE)
    _check_waiting(gate)
    if Decision.objects.filter(gate=gate).exists():
        raise Problem(
            "override_waiting", 409, "An override waits for its second approver: confirm or decline it first."
        )
    _check_evidence(gate, evidence_digest)
    if kind == DecisionKind.APPROVE and gate.verdict != GateVerdict.PASS:
        ways = "reject, or override with a reason and a second approver"
        raise Problem("not_passed", 409, f"The gate's verdict is {gate.verdict}: {ways}.")
    if override and gate.verdict == GateVerdict.PASS:
        raise Problem("override_not_needed", 409, "The gate passed: approve it.")
    if kind != DecisionKind.APPROVE and len(reason.strip()) < _MIN_REASON:
        raise _invalid("reason", f"say why, in at least {_MIN_REASON} characters")
    if kind != DecisionKind.REJECT:
        _check_servable(gate)
        _check_incumbent(gate)
    decision = Decision.objects.create(
        gate=gate,
        kind=kind,
        by=by,
        reason=reason.strip(),
        evidence_digest=evidence_digest,
        effective_at=None if override else timezone.now(),
    )
    _audit(gate, f"user:gate:{'ask_override' if override else kind}", by, decision)
    if not override:
        _take_effect(gate, decision, by)
    return decision


@transaction.atomic
def confirm_override(*, gate: Gate, by: User, evidence_digest: str) -> Decision:
    """The second approver agrees: the override takes effect. Raises Problem 403 for the first one."""
    gate, decision = _pending_override(gate, by)
    _check_evidence(gate, evidence_digest)
    _check_incumbent(gate)
    decision.second_by, decision.effective_at = by, timezone.now()
    decision.save(update_fields=["second_by", "effective_at"])
    _audit(gate, "user:gate:confirm_override", by, decision)
    _take_effect(gate, decision, by)
    return decision


@transaction.atomic
def decline_override(*, gate: Gate, by: User, reason: str) -> Gate:
    """The second approver disagrees: the gate waits for a decision again."""
    if len(reason.strip()) < _MIN_REASON:
        raise _invalid("reason", f"say why, in at least {_MIN_REASON} characters")
    gate, decision = _pending_override(gate, by)
    _audit(gate, "user:gate:decline_override", by, decision, reason=reason.strip())
    decision.delete()  # it never took effect; the audit trail keeps it
    return gate


def submitters(gate: Gate) -> dict[int, str]:
    """Who may not decide, and why: they made what is judged."""
    found: dict[int, str] = {}
    if gate.candidate.created_by_id is not None:
        found[gate.candidate.created_by_id] = "you made the candidate"
    if gate.run is not None and gate.run.created_by_id is not None:
        found[gate.run.created_by_id] = "you submitted the run"
    if gate.submitted_by_id is not None:
        found[gate.submitted_by_id] = "you opened the gate"
    return found


def _lock(gate: Gate) -> Gate:
    rows = Gate.objects.select_for_update(of=("self",)).select_related(
        "project", "channel__project", "incumbent", "candidate", "run", "evaluation__suite"
    )
    return rows.get(pk=gate.pk)


def _check_decider(gate: Gate, by: User, permission: Permission) -> None:
    require(by, permission, gate.project)
    because = submitters(gate).get(by.pk)
    if because is not None:
        raise Problem("separation_of_duties", 403, f"Somebody else must decide: {because}.")


def _check_waiting(gate: Gate) -> None:
    if gate.state != GateState.WAITING:
        raise Problem("gate_not_waiting", 409, f"Gate {gate.number} is {gate.state}: there is nothing to decide.")


def _check_evidence(gate: Gate, seen: str) -> None:
    if not seen:
        errors = [{"path": "evidence_digest", "message": "is missing"}]
        raise Problem("precondition_required", 428, "Send the evidence_digest that you decide on.", errors)
    if seen != gate.evidence_digest or digest_now(gate) != gate.evidence_digest:
        raise Problem(
            "evidence_changed", 409, "The evidence is not what you saw: reload the gate, look again, then decide."
        )


def _check_servable(gate: Gate) -> None:
    refused = why_not_served(gate.candidate)
    if refused:
        raise Problem("whole_weights", 409, f"{refused} The verdict stands: reject the candidate to close the gate.")


def _check_incumbent(gate: Gate) -> None:
    gate.channel.refresh_from_db()
    if gate.channel.policy_id != gate.incumbent_id:
        serves = gate.channel.policy.slug if gate.channel.policy else "nothing"
        raise Problem(
            "incumbent_changed",
            409,
            f"{gate.channel} serves {serves} now, but the gate compared with {gate.incumbent}: open a new gate.",
        )


def _pending_override(gate: Gate, by: User) -> tuple[Gate, Decision]:
    gate = _lock(gate)
    _check_decider(gate, by, Permission.GATE_OVERRIDE)
    _check_waiting(gate)
    decision = Decision.objects.select_for_update().filter(gate=gate, kind=DecisionKind.OVERRIDE).first()
    if decision is None or decision.effective_at is not None:
        raise Problem("no_override", 409, "No override waits for a second approver.")
    if decision.by_id == by.pk:
        raise Problem("second_approver", 403, "You asked for the override: another approver must agree.")
    return gate, decision


def _take_effect(gate: Gate, decision: Decision, by: User) -> None:
    gate.state = move_gate(gate.state, GateState.DECIDED)
    gate.save(update_fields=["state"])
    if decision.kind == DecisionKind.REJECT:
        return
    move_channel(
        channel=gate.channel,
        to_policy=gate.candidate,
        kind=MoveKind.PROMOTION,
        by=by,
        reason=decision.reason or f"Gate {gate.number}: {gate.headline}",
        decision_id=decision.pk,
    )
    start_regression(gate)


def _audit(gate: Gate, tag: str, by: User, decision: Decision, reason: str = "") -> None:
    record(
        tag=tag,
        by=by,
        project=gate.project,
        subject=gate,
        after={"decision": decision.pk, "kind": str(decision.kind), "verdict": gate.verdict, "number": gate.number},
        reason=reason or decision.reason,
        evidence={"evidence_digest": decision.evidence_digest},
    )


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid", 400, f"{path}: {message}.", [{"path": path, "message": message}])
