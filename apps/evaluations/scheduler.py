"""Advances evaluations: adapters installed, groups sent a few at a time, tried again, closed. Safe to call twice."""

from datetime import datetime
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from apps.evaluations.finishing import base_model_of, end_evaluation
from apps.evaluations.models import Evaluation, EvaluationArm, EvaluationItem, EvaluationState
from apps.evaluations.plans import task_seed
from apps.evaluations.states import OPEN_STATES, move_evaluation
from apps.evaluations.turns import ASK_AGAIN_AFTER, arm_in_turn, what_it_waits_for
from apps.runs.models import FleetInstall, Group, GroupState, InstallState, Outcome
from apps.runs.services import create_group, dispatch_group, request_install
from gpu_workers.contracts.enums import Boundary, Purpose
from gpu_workers.contracts.messages import AdapterInstall, Sampling

MAX_IN_FLIGHT = 48  # groups of one evaluation at the workers
MAX_TRIES = 3  # groups of one item; then its attempts are missing
_TIMEOUT_SECONDS = 300.0


def advance_evaluation(evaluation_id: UUID | str) -> str:
    """Do what is due in one evaluation. Returns its state, or "busy" when another call holds it."""
    with transaction.atomic():
        rows = Evaluation.objects.select_for_update(skip_locked=True, of=("self",))
        evaluation = rows.select_related("project", "suite").filter(pk=evaluation_id).first()
        if evaluation is None:
            return "busy"
        if evaluation.state in OPEN_STATES:
            _advance(evaluation, timezone.now())
        return str(evaluation.state)


def _advance(evaluation: Evaluation, now: datetime) -> None:
    _renew_failed(evaluation)
    arms = list(evaluation.arms.select_related("policy__base_model", "checkpoint__run__policy__base_model", "install"))
    shared, in_turn = [arm for arm in arms if not arm.whole_weights], arm_in_turn(arms)
    _create_ahead(evaluation, [*shared, *([in_turn] if in_turn else [])])
    waits = ""
    if shared and not _engines_ready(evaluation, shared, now):
        waits, shared = evaluation.status_message, []
    ready = list(shared)
    if in_turn is not None:
        waits_in_turn = what_it_waits_for(evaluation, in_turn, now)
        ready += [] if waits_in_turn else [in_turn]
        waits = " ".join(filter(None, [waits, waits_in_turn]))
    if not ready and waits:
        _say(evaluation, waits)
        return
    if evaluation.state == EvaluationState.QUEUED:
        evaluation.state = move_evaluation(evaluation.state, EvaluationState.RUNNING)
        evaluation.started_at = now
        evaluation.save(update_fields=["state", "started_at"])
    _dispatch(evaluation, ready)
    _report_or_finish(evaluation, waits)


def _renew_failed(evaluation: Evaluation) -> None:
    """Take infrastructure failures out of their items, so that they are tried anew; engines are checked first."""
    failed = Q(group__outcome=Outcome.INFRASTRUCTURE_FAILED) | Q(group__outcome=Outcome.REJECTED)
    items = list(evaluation.items.filter(failed, num_tries__lt=MAX_TRIES).select_related("group"))
    if not items:
        return
    boundaries = {item.group.boundary for item in items if item.group}
    EvaluationItem.objects.filter(pk__in=[item.pk for item in items]).update(group=None)
    if boundaries & {Boundary.ENGINE, Boundary.INFRASTRUCTURE} and _install_is_over(evaluation.install):
        evaluation.install = None  # an engine that restarted has lost its adapters
        evaluation.save(update_fields=["install"])
        settled = evaluation.arms.exclude(install__state=InstallState.REQUESTED)
        settled.update(install=None)  # or has the weights that it starts with


def _install_is_over(install: FleetInstall | None) -> bool:
    return install is None or install.state != InstallState.REQUESTED


def _create_ahead(evaluation: Evaluation, arms: list[EvaluationArm]) -> None:
    """Make groups of the arms' next items. Waiting groups also hold their arms' adapters on the fleet."""
    waiting = evaluation.items.filter(group__isnull=False).exclude(group__state=GroupState.CLOSED).count()
    room = MAX_IN_FLIGHT + 2 * len(arms) - waiting
    if room <= 0:
        return
    sampling = msgspec.convert(evaluation.sampling, Sampling)
    items = evaluation.items.filter(group__isnull=True, num_tries__lt=MAX_TRIES, arm__in=arms)
    for item in items.select_related("arm__policy", "arm__checkpoint__run", "task")[:room]:
        checkpoint = item.arm.checkpoint
        whole = item.arm.whole_weights
        item.group = create_group(
            project=evaluation.project,
            task=item.task,
            purpose=Purpose.EVALUATION,
            size=evaluation.samples,
            policy_adapter="" if whole else item.arm.engine_name,
            policy_weights=item.arm.engine_name if whole else "",
            policy_version=checkpoint.version if checkpoint else 0,
            num_shots=item.arm.num_shots,
            sampling=msgspec.structs.replace(sampling, seed=task_seed(sampling.seed, item.task.task_hash)),
            timeout_seconds=_TIMEOUT_SECONDS,
        )
        item.num_tries += 1
        item.save(update_fields=["group", "num_tries"])


def _engines_ready(evaluation: Evaluation, arms: list[EvaluationArm], now: datetime) -> bool:
    """Whether the fleet holds these arms. Asks for it, waits, asks again; the status says what it waits for."""
    install = evaluation.install
    if install is not None and install.state == InstallState.CONFIRMED:
        return True
    if install is None or (
        install.state != InstallState.REQUESTED and now - (install.finished_at or install.created_at) > ASK_AGAIN_AFTER
    ):
        install = request_install(base_model=base_model_of(arms[0]), install=_adapters(arms), retire=[])
        evaluation.install = install
        evaluation.save(update_fields=["install"])
    because = f": {install.message}" if install.message else "."
    _say(evaluation, f"Waiting for the engines to hold the policies{because}")
    return False


def _adapters(arms: list[EvaluationArm]) -> list[AdapterInstall]:
    """What the engines have to load; equal bytes once."""
    adapters: dict[str, AdapterInstall] = {}
    for arm in arms:
        if not arm.engine_name:
            continue
        if arm.checkpoint is not None:
            uri, digest, version = arm.checkpoint.adapter, arm.checkpoint.sha256, arm.checkpoint.version
        else:
            assert arm.policy is not None
            uri, digest, version = arm.policy.adapter, arm.policy.adapter_sha256, 0
        adapters[arm.engine_name] = AdapterInstall(name=arm.engine_name, uri=uri, sha256=digest, version=version)
    return list(adapters.values())


def _dispatch(evaluation: Evaluation, arms: list[EvaluationArm]) -> None:
    """Send new groups of the arms in order while few enough are out. Those that failed are sent again by runs."""
    groups = Group.objects.filter(evaluation_item__evaluation=evaluation)
    room = MAX_IN_FLIGHT - groups.filter(state=GroupState.RUNNING).count()
    if room <= 0:
        return
    new = groups.filter(state=GroupState.PENDING, dispatch=0, evaluation_item__arm__in=arms).order_by(
        "evaluation_item__position"
    )
    for group in new.select_related("task").select_for_update(no_key=True, of=("self",))[:room]:
        dispatch_group(group)


def _report_or_finish(evaluation: Evaluation, waits: str) -> None:
    counts = evaluation.items.aggregate(
        total=Count("pk"),
        closed=Count("pk", filter=Q(group__state=GroupState.CLOSED)),
        scored=Count("pk", filter=Q(group__outcome=Outcome.SCORED)),
    )
    if counts["closed"] < counts["total"]:
        _say(evaluation, " ".join(filter(None, [f"{counts['closed']} of {counts['total']} groups done.", waits])))
    elif counts["scored"] == 0:
        last = evaluation.items.select_related("group").last()
        reason = last.group.outcome_reason if last and last.group else "no reason was kept"
        end_evaluation(evaluation, EvaluationState.FAILED, f"No attempt could be scored: {reason}.")
    else:
        missing = counts["total"] - counts["scored"]
        lost = f"; {missing} had no result after {MAX_TRIES} tries" if missing else ""
        end_evaluation(
            evaluation, EvaluationState.FINISHED, f"{counts['scored']} of {counts['total']} groups scored{lost}."
        )


def _say(evaluation: Evaluation, message: str) -> None:
    if evaluation.status_message != message:
        evaluation.status_message = message
        evaluation.save(update_fields=["status_message"])
