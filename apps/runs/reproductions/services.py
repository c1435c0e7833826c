"""Writes of reproductions: ask for one, store its answer, mark the task where the verdict did not repeat."""

from datetime import timedelta
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.runs import messaging
from apps.runs.models import Episode
from apps.runs.reproductions.models import Reproduction, ReproductionOutcome, ReproductionState
from apps.runs.reproductions.outcomes import Judged, judge_outcome, tell_outcome
from apps.tasks.flaky import mark_flaky
from gpu_workers.contracts.enums import StopReason
from gpu_workers.contracts.messages import Report
from gpu_workers.contracts.replays import EpisodeReproduced, ReproduceJob, StoredEpisode
from gpu_workers.contracts.text import storable
from ratchet.commits import after_commit
from ratchet.problems import Problem

LOST_AFTER = timedelta(minutes=10)  # without an answer: asking again sends it again


@transaction.atomic
def request_reproduction(*, episode: Episode, by: User | None) -> Reproduction:
    """Have an episode played again; one at a time. Asked again while it is open, the open one is the answer.

    Raises Problem 403 without the right to start measurements, 409 where the stored actions are incomplete.
    """
    group = episode.group
    require(by, Permission.EVALUATION_CREATE, group.project)
    if not group.transcript:
        raise Problem("no_transcript", 409, "The turns of this episode are not stored: it cannot be played again.")
    if episode.stop_reason == StopReason.ERROR:
        where = episode.boundary or "infrastructure"
        raise Problem(
            "episode_incomplete", 409, f"This episode broke off at the {where} boundary: it has no end to reproduce."
        )
    Episode.objects.select_for_update(no_key=True).get(pk=episode.pk)
    row = episode.reproductions.filter(state=ReproductionState.REQUESTED).first()
    if row is not None and row.sent_at > timezone.now() - LOST_AFTER:
        return row
    if row is None:
        row = Reproduction.objects.create(episode=episode, requested_by=by)
        after = {"episode": str(episode.pk), "task": group.task.key, "suite": str(group.task.suite)}
        record(tag="user:episode:reproduce", by=by, project=group.project, subject=episode, after=after)
    else:
        row.sent_at = timezone.now()
        row.save(update_fields=["sent_at"])
    job = ReproduceJob(
        job_id=str(row.pk),
        task=group.task.bundle,
        episode=StoredEpisode(episode_id=str(episode.pk), transcript=group.transcript, index=episode.index),
    )
    after_commit(messaging.send_reproduce, job)
    return row


def apply_reproduction(report: Report) -> str:
    """Store a worker's answer. Returns the reason of refusal, or an empty string."""
    body = msgspec.convert(report.body, EpisodeReproduced)
    row = _lock(body.job_id)
    if row is None:
        return f"unknown reproduction {body.job_id!r}"
    if row.state != ReproductionState.REQUESTED:
        return f"reproduction is {row.state} already"
    row.finished_at = timezone.now()
    row.duration_seconds = body.duration_seconds
    if body.error:
        row.state, row.status_message = ReproductionState.FAILED, storable(body.error)[:1000]
        row.save()
        return ""
    _fill(row, body)
    if row.outcome == ReproductionOutcome.DIFFERENT:
        row.marked_flaky = mark_flaky(
            task=row.episode.group.task, message=row.status_message, episode=str(row.episode_id)
        )
    row.save()
    return ""


def _fill(row: Reproduction, body: EpisodeReproduced) -> None:
    stored = Judged(row.episode.verdict, row.episode.reward)
    again = Judged(body.verdict, body.reward)
    row.state = ReproductionState.FINISHED
    row.outcome = judge_outcome(stored, again, left_path=body.left_path, verifier_changed=body.verifier_changed)
    row.verdict, row.reward, row.reason_code = body.verdict, body.reward, body.reason_code[:40]
    row.message, row.evidence = storable(body.message), storable(body.evidence)
    row.calls = storable(msgspec.to_builtins(body.calls))
    row.num_calls_different = sum(not call.same for call in body.calls)
    row.digest, row.stored_digest = body.digest[:64], body.stored_digest[:64]
    row.isolation, row.limits_hit = storable(body.sandbox.isolation)[:200], storable(body.sandbox.limits_hit)
    row.status_message = tell_outcome(row.outcome, stored, again, len(body.calls), row.num_calls_different)


def _lock(job_id: str) -> Reproduction | None:
    try:
        key = UUID(job_id)
    except ValueError:
        return None
    rows = Reproduction.objects.select_for_update(no_key=True, of=("self",))
    return rows.select_related("episode__group__task__suite__project").filter(pk=key).first()
