"""Turns on the engines whose weights are replaced (ROLLOUT_FULL_ENGINE_URLS): one holder, first come, first served."""

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.accounts.models import Project
from apps.runs import messaging
from apps.runs.events import record_event
from apps.runs.models import FINAL_RUN_STATES, FleetInstall, FleetLease, InstallState, Run
from apps.runs.signals import fleet_lease_due
from gpu_workers.contracts.runspec import Algorithm
from ratchet.commits import after_commit

SILENCE_AFTER = timedelta(minutes=2)  # no answer of the fleet at all
NO_FLEET = (
    "no engines are set for runs that train every weight: name them in ROLLOUT_FULL_ENGINE_URLS (RATCHET_FULL_ENGINE=1 "
    "starts one beside the others), or train an adapter (trainer.update lora)"
)


def has_fleet() -> bool:
    """Whether there are engines for whole weights."""
    return bool(settings.ROLLOUT_FULL_ENGINE_URLS)


def open_leases() -> QuerySet[FleetLease]:
    """The holder's and those that wait, in their order."""
    return FleetLease.objects.filter(released_at=None).order_by("id")


def needs_lease(run: Run) -> bool:
    """Whether the run samples from engines whose weights it replaces; a supervised one has only its result there."""
    return run.whole_weights and run.spec["algorithm"]["kind"] != Algorithm.SFT


def ask_for_run(run: Run) -> FleetLease:
    """The locked run's lease, granted when its turn has come; it waits in line from the first call on."""
    lease = open_leases().filter(run=run).first()
    if lease is None:
        lease = FleetLease.objects.create(run=run, project=run.project, label=f"run {run.number}")
    if lease.granted_at is None and _grant(lease):
        record_event(run, "fleet_granted", "The run has its turn on the engines of full runs.")
    return lease


def ask_for_evaluation(evaluation_id: UUID, *, project: Project, label: str, run: Run | None) -> FleetLease:
    """The lease of a locked evaluation. The evaluation of a run that has its turn uses that turn."""
    lease = open_leases().filter(evaluation_id=evaluation_id).first()
    if lease is None and run is not None:
        lease = open_leases().filter(run=run, granted_at__isnull=False, evaluation_id=None).first()
        if lease is not None:
            lease.evaluation_id = evaluation_id
            lease.save(update_fields=["evaluation_id"])
    if lease is None:
        lease = FleetLease.objects.create(evaluation_id=evaluation_id, project=project, label=label[:200])
    if lease.granted_at is None:
        _grant(lease)
    return lease


def held_by(run: Run) -> FleetLease | None:
    """The run's granted lease."""
    return open_leases().filter(run=run, granted_at__isnull=False).first()


def _grant(lease: FleetLease) -> bool:
    """Hand the engines over when nobody is before it and no install of the last holder may still be under way."""
    first = open_leases().first()
    if first is None or first.pk != lease.pk or _install_under_way():
        return False
    lease.granted_at = timezone.now()
    try:
        with transaction.atomic():
            lease.save(update_fields=["granted_at"])
    except IntegrityError:  # somebody was granted it in the same moment
        lease.granted_at = None
        return False
    return True


def _install_under_way() -> bool:
    late = timezone.now() - SILENCE_AFTER
    unanswered = FleetInstall.objects.filter(state=InstallState.REQUESTED, lease__released_at__isnull=False)
    return unanswered.filter(sent_at__gt=late).exists()


def waits_for(lease: FleetLease) -> str:
    """Why a lease is not granted yet, for people; other projects are not named."""
    first = open_leases().exclude(pk=lease.pk).select_related("run").first()
    if first is None or first.pk > lease.pk:
        return "The engines of full runs finish what their last user asked of them."
    if first.project_id != lease.project_id:
        who = "another project"
    else:
        who = f"{first.label} ({first.run.state})" if first.run and first.run.state == "paused" else first.label
    before = open_leases().filter(pk__lt=lease.pk).count() - 1
    line = f", and {before} more wait before it" if before else ""
    verb = "holds it" if first.granted_at else "is next"
    return f"Waits for the engines of full runs: {who} {verb}{line}."


def withdraw(run: Run) -> None:
    """A run that is paused before its turn leaves the line: it would hold up everybody behind it."""
    waiting = open_leases().filter(run=run, granted_at=None)
    if waiting.exists():
        waiting.delete()
        call_next()


def release_run(run: Run) -> None:
    """The run is over; where its evaluation still runs, that one keeps the engines until it is over too."""
    lease = open_leases().filter(run=run).first()
    if lease is None or lease.evaluation_id is not None:
        return
    _end(lease)


def release_evaluation(evaluation_id: UUID) -> None:
    """The evaluation is over; a run that it belongs to and that is not over keeps the engines."""
    lease = open_leases().select_related("run").filter(evaluation_id=evaluation_id).first()
    if lease is None:
        return
    if lease.run is not None and not Run.objects.filter(pk=lease.run.pk, state__in=FINAL_RUN_STATES).exists():
        lease.evaluation_id = None
        lease.save(update_fields=["evaluation_id"])
        return
    _end(lease)


def _end(lease: FleetLease) -> None:
    now = timezone.now()
    lease.released_at = now
    lease.save(update_fields=["released_at"])
    # Refused ones would be asked again; what is unanswered may still be under way, and the next holder waits for it.
    refused = lease.installs.filter(state=InstallState.REQUESTED).exclude(message="")
    refused.update(state=InstallState.FAILED, finished_at=now)
    call_next()


def call_next() -> None:
    """Have whoever is first in line ask again: it may be its turn now."""
    first = open_leases().select_related("run").first()
    if first is None or first.granted_at is not None:
        return
    if first.run is not None:
        after_commit(messaging.request_advance, first.run.pk)
    else:
        fleet_lease_due.send(sender=FleetLease, lease=first)


def sweep(now: datetime) -> int:
    """Release what a run left behind that ended, and give up on answers that will not come. Returns how many."""
    count = 0
    over = Q(run__state__in=FINAL_RUN_STATES, evaluation_id=None)
    for lease in open_leases().filter(over):
        with transaction.atomic():
            locked = open_leases().select_for_update(of=("self",)).filter(over, pk=lease.pk).first()
            if locked is not None:
                _end(locked)
                count += 1
    silent = FleetInstall.objects.filter(state=InstallState.REQUESTED, lease__released_at__isnull=False)
    silent.filter(sent_at__lte=now - SILENCE_AFTER).update(
        state=InstallState.FAILED, finished_at=now, message="unanswered when its turn on the engines was over"
    )
    return count
