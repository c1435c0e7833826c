"""What evaluations do when runs announce something."""

from typing import Any

from django.db.models import Q
from django.dispatch import receiver

from apps.evaluations import messaging, selection
from apps.evaluations.models import Evaluation, EvaluationItem, EvaluationPurpose
from apps.evaluations.signals import evaluation_finished
from apps.evaluations.states import OPEN_STATES
from apps.runs.models import Checkpoint, FleetInstall, FleetLease, Group, Run
from apps.runs.signals import checkpoint_published, fleet_lease_due, group_stored, install_finished, run_trained
from ratchet.commits import after_commit


@receiver(checkpoint_published)
def start_dev_evaluation(checkpoint: Checkpoint, **_: Any) -> None:
    selection.consider_checkpoint(checkpoint)


@receiver(run_trained)
def choose_when_trained(run: Run, **_: Any) -> None:
    after_commit(messaging.request_choice, run.pk)


@receiver(group_stored)
def advance_after_group(group: Group, **_: Any) -> None:
    if group.run_id is not None:
        return
    item = EvaluationItem.objects.filter(group=group).first()
    if item is not None:
        after_commit(messaging.request_advance, item.evaluation_id)


@receiver(install_finished)
def advance_after_install(install: FleetInstall, **_: Any) -> None:
    waiting = Q(install=install) | Q(arms__install=install)
    for evaluation in Evaluation.objects.filter(waiting, state__in=OPEN_STATES).distinct():
        after_commit(messaging.request_advance, evaluation.pk)


@receiver(fleet_lease_due)
def advance_in_turn(lease: FleetLease, **_: Any) -> None:
    after_commit(messaging.request_advance, lease.evaluation_id)


@receiver(evaluation_finished)
def note_dev_success(evaluation: Evaluation, **_: Any) -> None:
    if evaluation.purpose == EvaluationPurpose.DEV and evaluation.run_id is not None:
        selection.store_dev_success(evaluation)
        after_commit(messaging.request_choice, evaluation.run_id)
