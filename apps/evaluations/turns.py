"""Arms with whole weights: one after another on the engines whose weights are replaced, under a lease."""

from datetime import datetime, timedelta

from django.db.models import Q

from apps.evaluations.models import Evaluation, EvaluationArm
from apps.runs.models import FleetInstall, FleetLease, Group, GroupState, InstallState, Run
from apps.runs.services import leases, request_install
from apps.runs.services.installs import transfer_of
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import AdapterInstall, Transfer

ASK_AGAIN_AFTER = timedelta(seconds=15)  # an install that was given up


def arm_in_turn(arms: list[EvaluationArm]) -> EvaluationArm | None:
    """The first arm with whole weights that is not done; the later ones wait for it."""
    left = Q(group=None) | ~Q(group__state=GroupState.CLOSED)
    return next((arm for arm in arms if arm.whole_weights and arm.items.filter(left).exists()), None)


def what_it_waits_for(evaluation: Evaluation, arm: EvaluationArm, now: datetime) -> str:
    """Have the engines hold the arm's weights; what that waits for, empty when they do."""
    if not leases.has_fleet():
        return f"{arm.label}: {leases.NO_FLEET}."
    label = f"the {evaluation.get_purpose_display().lower()} of {arm.label}"
    lease = leases.ask_for_evaluation(evaluation.pk, project=evaluation.project, label=label, run=evaluation.run)
    if lease.granted_at is None:
        return leases.waits_for(lease)
    others = lease.installs.filter(state=InstallState.REQUESTED, message="")
    if arm.install_id is not None:
        others = others.exclude(pk=arm.install_id)
    if others.filter(sent_at__gt=now - leases.SILENCE_AFTER).exists():
        return "Waiting for the engines of full runs to finish what they were asked before."
    install = arm.install
    if install is not None and install.state == InstallState.CONFIRMED and not _failed_since(arm, install):
        return ""
    if install is None or install.state == InstallState.CONFIRMED or _is_over(install, now):
        install = arm.install = _request(arm, lease)
        arm.save(update_fields=["install"])
    because = f": {install.message}" if install.message else "."
    return f"Waiting for the engines of full runs to take the weights of {arm.label}{because}"


def _is_over(install: FleetInstall, now: datetime) -> bool:
    return (
        install.state != InstallState.REQUESTED and now - (install.finished_at or install.created_at) > ASK_AGAIN_AFTER
    )


def _failed_since(arm: EvaluationArm, install: FleetInstall) -> bool:
    """An engine failed under a group of the arm that was sent since: it may have restarted, with other weights."""
    failed = Group.objects.filter(evaluation_item__arm=arm, state=GroupState.PENDING, boundary=Boundary.ENGINE)
    return failed.filter(dispatched_at__gt=install.finished_at).exists()


def _request(arm: EvaluationArm, lease: FleetLease) -> FleetInstall:
    checkpoint, policy = arm.checkpoint, arm.policy
    run: Run | None
    if checkpoint is not None:
        run, base = checkpoint.run, checkpoint.run.policy.base_model
        uri, digest, version = checkpoint.adapter, checkpoint.sha256, checkpoint.version
    else:
        assert policy is not None
        run, base = Run.objects.filter(pk=policy.run_id).first() if policy.run_id else None, policy.base_model
        uri, digest, version = policy.adapter, policy.adapter_sha256, 0
    return request_install(
        base_model=base.slug,
        install=[AdapterInstall(name=arm.engine_name, uri=uri, sha256=digest, version=version)],
        retire=[],
        transfer=transfer_of(run) if run else Transfer.AUTO,
        lease=lease,
    )
