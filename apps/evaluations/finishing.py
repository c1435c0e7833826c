"""Ends of evaluations: what their open groups and adapters become, and who hears of it."""

from collections.abc import Iterable

from django.db import transaction
from django.utils import timezone

from apps.evaluations.models import Evaluation, EvaluationArm, EvaluationState
from apps.evaluations.signals import adapters_retiring, evaluation_finished
from apps.evaluations.states import OPEN_STATES, move_evaluation
from apps.policies.models import Channel, ChannelMove
from apps.runs.models import FINAL_RUN_STATES, Group, GroupState, Outcome, Run
from apps.runs.services import close_group, leases, request_install

_KEPT_MOVES = 2  # of each channel: what serves, and what a rollback puts back


@transaction.atomic
def end_evaluation(evaluation: Evaluation, target: EvaluationState, message: str) -> None:
    """Bring a locked evaluation to a final state."""
    evaluation.state = move_evaluation(evaluation.state, target)
    evaluation.status_message = message
    evaluation.finished_at = timezone.now()
    evaluation.save(update_fields=["state", "status_message", "finished_at"])
    for group in _open_groups(evaluation):
        close_group(group, Outcome.CANCELLED, f"the evaluation was {target}")
    leases.release_evaluation(evaluation.pk)
    evaluation_finished.send(sender=Evaluation, evaluation=evaluation)
    _retire(evaluation)


def _open_groups(evaluation: Evaluation) -> Iterable[Group]:
    groups = Group.objects.filter(evaluation_item__evaluation=evaluation).exclude(state=GroupState.CLOSED)
    return groups.select_for_update(no_key=True, of=("self",))


def _retire(evaluation: Evaluation) -> None:
    """Drop the arms' adapters from the fleet, but those that a channel, a run or another evaluation needs."""
    arms = list(evaluation.arms.select_related("policy__base_model", "checkpoint__run__policy__base_model"))
    names = {arm.engine_name for arm in arms if arm.engine_name and not arm.whole_weights}
    if not names:
        return
    base_model = base_model_of(arms[0])
    kept = _wanted_by_channels() | _wanted_by_evaluations() | _wanted_by_runs()
    for _, wanted in adapters_retiring.send(sender=Evaluation, base_model=base_model, names=names - kept):
        kept |= set(wanted or ())
    unused = sorted(names - kept)
    if unused:
        request_install(base_model=base_model, install=[], retire=unused)


def base_model_of(arm: EvaluationArm) -> str:
    """Slug of the base model that the arm runs on."""
    if arm.policy is not None:
        return arm.policy.base_model.slug
    assert arm.checkpoint is not None
    return arm.checkpoint.run.policy.base_model.slug


def _wanted_by_channels() -> set[str]:
    moves = ChannelMove.objects.select_related("to_policy").order_by("channel", "-epoch")
    wanted = {channel.policy.engine_name for channel in Channel.objects.select_related("policy") if channel.policy}
    seen: dict[int, int] = {}
    for move in moves:
        seen[move.channel_id] = seen.get(move.channel_id, 0) + 1
        if seen[move.channel_id] <= _KEPT_MOVES:
            wanted.add(move.to_policy.engine_name)
    return wanted


def _wanted_by_evaluations() -> set[str]:
    arms = EvaluationArm.objects.filter(evaluation__state__in=OPEN_STATES).select_related("policy", "checkpoint")
    return {arm.engine_name for arm in arms}


def _wanted_by_runs() -> set[str]:
    """Starting policies of unfinished runs, and their checkpoints: the run retires those itself."""
    wanted: set[str] = set()
    for run in Run.objects.exclude(state__in=FINAL_RUN_STATES).select_related("policy"):
        wanted.add(run.policy.engine_name)
        wanted.update(checkpoint.engine_name for checkpoint in run.checkpoints.all())
    return wanted
