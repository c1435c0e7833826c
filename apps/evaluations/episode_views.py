"""Pages of one group and one episode: why did it get this reward?"""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse

from apps.evaluations.models import EvaluationArm
from apps.runs.models import Episode, Group
from apps.runs.presentation import conversation, rank_of, timeline, token_rows
from apps.runs.reproductions.selectors import may_reproduce, reproductions_of
from apps.runs.selectors import find_episode, find_group, is_heldout
from apps.runs.transcripts import episode_tokens, episode_transcript
from apps.tasks.services import note_heldout_look
from ratchet.pages import page, reader
from ratchet.problems import Problem


@login_required
def group(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One group: every episode of the same task side by side."""
    user = reader(request)
    found = find_group(user, pk)
    _note_look(request, found)
    return page(
        request, "group.html", here="runs", group=found, run=found.run, episodes=list(found.episodes.order_by("index")),
        arm=_arm(found),
    )  # fmt: skip


@login_required
def episode(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One episode: conversation, sandbox, verdict, siblings, tokens, time. A lost file is said, not a broken page."""
    user = reader(request)
    found = find_episode(user, pk)
    _note_look(request, found.group)
    arm = _arm(found.group)
    record, lost = None, ""
    try:
        record = episode_transcript(found)
    except Problem as problem:
        lost = problem.detail
    tokens, num_folded, tokens_lost = _tokens(found)
    return page(
        request, "episode.html", here="runs", episode=found, group=found.group, run=found.group.run,
        siblings=list(found.group.episodes.order_by("index")), record=record, lost=lost,
        turns=conversation(record, found) if record else [], tokens=tokens, num_folded=num_folded,
        reproductions=reproductions_of(found), reproducible=may_reproduce(user, found),
        tokens_lost=tokens_lost, time=timeline(found), rank=rank_of(found), arm=arm,
    )  # fmt: skip


def _tokens(found: Episode) -> tuple[list[Any], int, str]:
    """Rows of the token view, how many prompt tokens are folded away, and why there are none."""
    try:
        return token_rows(episode_tokens(found))
    except Problem as problem:
        return [], 0, problem.detail


def _arm(group: Group) -> EvaluationArm | None:
    """The arm that a group of an evaluation belongs to; None for a training group."""
    arms = EvaluationArm.objects.filter(items__group=group)
    return arms.select_related("evaluation", "policy", "checkpoint__run").first()


def _note_look(request: HttpRequest, found: Group) -> None:
    if is_heldout(found):
        note_heldout_look(suite=found.task.suite, by=reader(request), task_keys=[found.task.key])
