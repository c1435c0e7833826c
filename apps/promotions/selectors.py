"""Reads of gates: lists, the page of one gate with what its reader may do, decisions waiting."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet

from apps.accounts.models import User
from apps.accounts.permissions import Actor, Permission, has_permission, not_found, permitted_projects
from apps.audit.models import AuditEvent
from apps.evaluations.selectors import ROTATION_AFTER, HeldoutLedger, heldout_ledger
from apps.policies.models import ChannelMove, MoveKind
from apps.policies.selectors import rollback_target, why_not_served
from apps.promotions.collection import evidence_digest
from apps.promotions.decisions import submitters
from apps.promotions.models import Decision, DecisionKind, Gate, GateState, GateVerdict
from apps.runs.models import GroupState
from apps.tasks.models import Suite

_CONTENT = ("tasks",)  # of a report: needs heldout:read


@dataclass(frozen=True)
class Allowed:
    """What the reader may do now; `why_not` says in words what stands against deciding."""

    approve: bool
    reject: bool
    override: bool
    confirm: bool  # also decline
    rollback: bool
    why_not: str


@dataclass(frozen=True)
class GatePage:
    """One gate as its reader may see it. `report` lacks `tasks` without the right to held-out content."""

    gate: Gate
    report: dict[str, Any]
    shows_tasks: bool
    decision: Decision | None
    allowed: Allowed
    ledger: HeldoutLedger
    num_promotions: int  # decided on this held-out set
    rotation_after: int
    history: list[AuditEvent]
    moves: list[ChannelMove]


def visible_gates(user: Actor) -> QuerySet[Gate]:
    """Gates of projects in which the user may read them, newest first, with counts of their evaluation's groups."""
    projects = permitted_projects(user, Permission.GATE_READ)
    gates = Gate.objects.filter(project__in=projects.values("pk"))
    return gates.select_related(
        "project", "channel__project", "incumbent", "candidate", "run", "gate_policy", "submitted_by",
        "evaluation__suite", "evaluation__look", "regression", "decision__by", "decision__second_by",
    ).annotate(
        num_groups=Count("evaluation__items"),
        num_closed=Count("evaluation__items", filter=Q(evaluation__items__group__state=GroupState.CLOSED)),
    ).order_by("-id")  # fmt: skip


def find_gate(user: Actor, gate_id: UUID | str) -> Gate:
    """One gate the user may see. Raises Problem 404."""
    gate = visible_gates(user).filter(pk=gate_id).first()
    if gate is None:
        raise not_found()
    return gate


def decisions_waiting(user: User) -> list[Gate]:
    """Gates that this person can decide or confirm now, oldest first: the home page's first list."""
    projects = permitted_projects(user, Permission.GATE_DECIDE)
    waiting = visible_gates(user).filter(project__in=projects.values("pk"), state=GateState.WAITING).order_by("id")
    gates = waiting.exclude(Q(submitted_by=user) | Q(run__created_by=user) | Q(candidate__created_by=user))
    return [gate for gate in gates if (decision := decision_of(gate)) is None or decision.by_id != user.pk]


def gate_page(user: User, gate: Gate) -> GatePage:
    """All that the page of a gate shows."""
    shows_tasks = has_permission(user, Permission.HELDOUT_READ, gate.project)
    suite = gate.evaluation.suite
    return GatePage(
        gate=gate,
        report=readable_report(user, gate),
        shows_tasks=shows_tasks,
        decision=decision_of(gate),
        allowed=allowed(user, gate),
        ledger=heldout_ledger(suite, gate.gate_policy.alpha),
        num_promotions=num_promotions(suite),
        rotation_after=ROTATION_AFTER,
        history=list(AuditEvent.objects.filter(subject_type="promotions.gate", subject_id=str(gate.pk)).order_by("id")),
        moves=list(gate.channel.moves.select_related("from_policy", "to_policy", "by")[:20]),
    )


def readable_report(user: Actor, gate: Gate) -> dict[str, Any]:
    """The stored report without what the reader may not see."""
    if has_permission(user, Permission.HELDOUT_READ, gate.project):
        return gate.report
    return {name: value for name, value in gate.report.items() if name not in _CONTENT}


def decision_of(gate: Gate) -> Decision | None:
    return getattr(gate, "decision", None)


def allowed(user: User, gate: Gate) -> Allowed:
    """What the person may do with the gate now."""
    rollback = _may_roll_back(user, gate)
    decision = decision_of(gate)
    why_not = _against(user, gate, decision)
    if why_not:
        return Allowed(False, False, False, False, rollback, why_not)
    may_override = has_permission(user, Permission.GATE_OVERRIDE, gate.project)
    if decision is not None:
        return Allowed(False, False, False, may_override, rollback, "")
    passed = gate.verdict == GateVerdict.PASS
    current = gate.channel.policy_id == gate.incumbent_id
    words = "" if current else f"{gate.channel} has moved since: approving needs a new gate."
    if refused := why_not_served(gate.candidate):
        return Allowed(False, True, False, False, rollback, refused)
    return Allowed(passed and current, True, may_override and not passed and current, False, rollback, words)


def _against(user: User, gate: Gate, decision: Decision | None) -> str:
    """Why this person cannot decide; empty when they can."""
    if gate.state != GateState.WAITING:
        return f"The gate is {gate.get_state_display().lower()}."
    if not has_permission(user, Permission.GATE_DECIDE, gate.project):
        return "Only approvers decide."
    if because := submitters(gate).get(user.pk):
        return f"Somebody else must decide: {because}."
    if decision is not None and decision.by_id == user.pk:
        return "Your override waits for a second approver."
    return ""


def _may_roll_back(user: User, gate: Gate) -> bool:
    decision = decision_of(gate)
    return (
        decision is not None
        and decision.effective_at is not None
        and decision.kind != DecisionKind.REJECT
        and gate.channel.policy_id == gate.candidate_id
        and has_permission(user, Permission.CHANNEL_ROLLBACK, gate.project)
        and rollback_target(gate.channel) is not None
    )


def num_promotions(suite: Suite) -> int:
    """Promotions that were decided on a suite's held-out set: it should rotate after `ROTATION_AFTER`."""
    decisions = Decision.objects.filter(gate__evaluation__suite=suite, effective_at__isnull=False)
    moved = ChannelMove.objects.filter(kind=MoveKind.PROMOTION, decision_id__in=decisions.values("pk"))
    return moved.count()


def evidence_holds(gate: Gate) -> bool:
    """Whether the stored episodes are still those that the verdict was computed from."""
    return bool(gate.evidence_digest) and evidence_digest(gate) == gate.evidence_digest
