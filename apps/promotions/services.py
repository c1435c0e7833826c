"""Writes of gates: open one with its plan fixed, compute its verdict from stored episodes."""

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from apps.accounts.models import Project, User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.evaluations.models import EvaluationPurpose, EvaluationState, GatePolicy
from apps.evaluations.services import policy_arm, spend_look, start_evaluation
from apps.evaluations.states import FINAL_STATES
from apps.policies.models import Channel, Policy
from apps.promotions import messaging
from apps.promotions.collection import collect, evidence_digest, rules_of
from apps.promotions.decisions import confirm_override, decide, decline_override
from apps.promotions.gates import judge
from apps.promotions.models import Gate, GateState
from apps.promotions.reporting import build_report
from apps.promotions.states import move_gate
from apps.runs.models import Run
from apps.tasks.models import SplitName, Suite
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.runspec import parse_run_spec
from ratchet.commits import after_commit
from ratchet.problems import Problem

__all__ = ["compute_gate", "confirm_override", "decide", "decline_override", "open_gate"]

_MAX_BASELINES = 6


@transaction.atomic
def open_gate(
    *,
    project: Project,
    channel: Channel,
    candidate: Policy,
    gate_policy: GatePolicy,
    suite: Suite,
    by: User | None,
    run: Run | None = None,
    samples: int = 1,
    extra_arms: Sequence[Policy] = (),
    sampling: Sampling | None = None,
) -> Gate:
    """Fix what is compared, spend a look at the held-out set and start the evaluation.

    Arms in order: incumbent, candidate, baselines. `sampling` None: greedy for one sample, else at temperature 1,
    with the token limit of the candidate's run. Raises Problem 400 or 409 naming what is wrong.
    """
    require(by, Permission.GATE_CREATE, project)
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)  # numbers are given one at a time
    Suite.objects.select_for_update(no_key=True).get(pk=suite.pk)  # so are looks; before the audit chain's lock
    incumbent = channel.policy
    _check(project, channel, candidate, gate_policy, extra_arms)
    assert incumbent is not None
    if run is None and candidate.run_id is not None:
        run = Run.objects.filter(pk=candidate.run_id, project=project).first()
    baselines = [policy for policy in dict.fromkeys(extra_arms) if policy.pk not in (incumbent.pk, candidate.pk)]
    evaluation = start_evaluation(
        project=project,
        suite=suite,
        split=SplitName.HELDOUT,
        purpose=EvaluationPurpose.GATE,
        arms=[policy_arm(policy) for policy in (incumbent, candidate, *baselines)],
        samples=samples,
        sampling=sampling or _sampling(run, samples),
        by=by,
        run=None,
    )
    look = spend_look(evaluation=evaluation, alpha=gate_policy.alpha, by=by)
    number = (Gate.objects.filter(project=project).aggregate(newest=Max("number"))["newest"] or 0) + 1
    gate = Gate.objects.create(
        project=project,
        number=number,
        channel=channel,
        incumbent=incumbent,
        candidate=candidate,
        run=run,
        evaluation=evaluation,
        gate_policy=gate_policy,
        submitted_by=by,
    )
    after = {"number": number, "channel": channel.name, "incumbent": incumbent.slug, "candidate": candidate.slug}
    after |= {"gate_policy": str(gate_policy), "suite": str(suite), "look": look.number, "alpha": look.alpha}
    evidence = {"plan_hash": evaluation.plan_hash, "baselines": [policy.slug for policy in baselines]}
    tag = "user:gate:open" if by else "system:gate:open"
    record(tag=tag, by=by, project=project, subject=gate, after=after, evidence=evidence)
    return gate


def _check(
    project: Project, channel: Channel, candidate: Policy, gate_policy: GatePolicy, extra_arms: Sequence[Policy]
) -> None:
    if channel.project_id != project.pk:
        raise _invalid("channel", f"is not of project {project.slug}")
    if channel.policy_id is None:
        raise _invalid("channel", f"{channel} serves nothing yet: set its first policy, which needs no gate")
    if candidate.project_id != project.pk:
        raise _invalid("candidate", f"is not of project {project.slug}")
    if candidate.pk == channel.policy_id:
        raise _invalid("candidate", f"{candidate} is what {channel} serves already")
    if gate_policy.project_id != project.pk:
        raise _invalid("gate_policy", f"is not of project {project.slug}")
    if len(extra_arms) > _MAX_BASELINES:
        raise _invalid("baselines", f"at most {_MAX_BASELINES} are run beside a gate")
    running = Gate.objects.filter(channel=channel, candidate=candidate, state=GateState.EVALUATING).first()
    if running is not None:
        raise Problem("gate_open", 409, f"Gate {running.number} is evaluating {candidate} for {channel} already.")


def _sampling(run: Run | None, samples: int) -> Sampling:
    tokens = Sampling().max_new_tokens
    if run is not None:
        spec = parse_run_spec(run.spec)
        tokens = spec.evaluation.max_new_tokens or spec.rollout.max_new_tokens
    return Sampling(max_new_tokens=tokens, temperature=0.0 if samples == 1 else 1.0)


@transaction.atomic
def compute_gate(gate: Gate) -> Gate:
    """Give the verdict once the evaluation is over. Everything is recomputed from stored episodes."""
    rows = Gate.objects.select_for_update(of=("self",)).select_related(
        "project", "channel", "incumbent", "candidate", "run", "gate_policy", "evaluation__suite", "evaluation__look"
    )
    gate = rows.get(pk=gate.pk)
    if gate.state != GateState.EVALUATING or gate.evaluation.state not in FINAL_STATES:
        return gate
    gate.computed_at = timezone.now()
    if gate.evaluation.state != EvaluationState.FINISHED:
        gate.state = move_gate(gate.state, GateState.FAILED)
        gate.headline = f"No verdict: the evaluation was {gate.evaluation.state}. {gate.evaluation.status_message}"
        gate.save(update_fields=["state", "headline", "computed_at"])
        record(tag="system:gate:fail", by=None, project=gate.project, subject=gate, reason=gate.headline)
        return gate
    judged = judge(collect(gate), rules_of(gate))
    gate.evidence_digest = evidence_digest(gate)
    gate.verdict, gate.headline = str(judged.verdict), judged.headline
    gate.report = build_report(gate, judged)
    gate.state = move_gate(gate.state, GateState.WAITING)
    gate.save()
    look = gate.evaluation.look
    look.verdict = gate.verdict
    look.save(update_fields=["verdict"])
    after = {"verdict": gate.verdict, "headline": gate.headline, "number": gate.number}
    evidence = {"evidence_digest": gate.evidence_digest, "plan_hash": gate.evaluation.plan_hash}
    record(tag="system:gate:verdict", by=None, project=gate.project, subject=gate, after=after, evidence=evidence)
    return gate


def compute_soon(gate: Gate) -> None:
    """Have the verdict computed once this transaction is committed."""
    after_commit(messaging.request_verdict, gate.pk)


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid", 400, f"{path}: {message}.", [{"path": path, "message": message}])
