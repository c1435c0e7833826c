"""Trainer attempts: leases with fencing tokens, heartbeats, ends."""

import secrets
from datetime import datetime, timedelta
from itertools import takewhile

from django.db.models import Sum
from django.utils import timezone

from apps.runs import messaging, states
from apps.runs.events import WARNING, record_event
from apps.runs.models import AttemptState, Run, RunAttempt
from apps.runs.services import durable
from gpu_workers.contracts.messages import Heartbeat, StopMessage, TrainJob
from gpu_workers.contracts.runspec import RunSpec
from ratchet.commits import after_commit

LEASE = timedelta(seconds=45)  # nine heartbeats
QUEUE_LEASE = timedelta(minutes=15)  # a job may wait behind another run's trainer
ON_ITS_WAY = timedelta(seconds=10)  # a job sent less long ago may not have reached the broker


def alive(run: Run) -> RunAttempt | None:
    """The attempt that holds the run's lease."""
    return run.attempts.exclude(state=AttemptState.ENDED).first()


def start_attempt(run: Run, spec: RunSpec, now: datetime) -> RunAttempt:
    """Lease the run's trainer to the next attempt and send its job. The run is locked."""
    previous = run.attempts.order_by("-number").first()
    number = previous.number + 1 if previous else 1
    attempt = RunAttempt.objects.create(
        run=run,
        number=number,
        token=number * 2**32 + secrets.randbits(32),
        resume_from=_checkpoint_to_resume(run, previous),
        lease_expires_at=now + QUEUE_LEASE,
    )
    job = TrainJob(
        run_id=str(run.id),
        attempt=number,
        token=attempt.token,
        spec=run.spec,  # as stored: its hash is what checkpoints are of, whatever fields later versions add
        base_model=run.policy.base_model.slug,
        parent_checkpoint=run.policy.adapter,
        parent_sha256=run.policy.adapter_sha256,
        resume_from=attempt.resume_from,
        dataset=run.dataset,
        publish_every=spec.evaluation.dev_every,
    )
    after_commit(messaging.send_train, job)
    if number > 1:
        start = f"from {attempt.resume_from}" if attempt.resume_from else "from the start"
        record_event(run, "attempt_started", f"Trainer attempt {number} was sent; it resumes {start}.", attempt=number)
    return attempt


def _checkpoint_to_resume(run: Run, previous: RunAttempt | None) -> str:
    """Key of the newest checkpoint that no trainer found damaged; empty: from the start."""
    found = durable.find_unreported(run, previous) if previous else ""
    if found:
        return found
    usable = run.checkpoints.filter(resumable=True).exclude(uri="").order_by("-version")
    return next(filter(durable.can_resume, usable.values_list("uri", flat=True)), "")


def find_alive(run_id: str, number: int, token: int) -> RunAttempt | None:
    """The attempt of a report, if it may still speak: current token, not ended, or ended with its work done."""
    attempt = RunAttempt.objects.filter(run_id=run_id, number=number, token=token).first()
    if attempt is None or (attempt.state == AttemptState.ENDED and attempt.finished_version is None):
        return None
    return attempt


def end_attempt(attempt: RunAttempt, reason: str, *, stop: bool = False, code: str = "") -> None:
    """End a lease. `stop`: tell whoever still reads the attempt's queue to drop everything."""
    attempt.state = states.move_attempt(attempt.state, AttemptState.ENDED)
    attempt.ended_at = timezone.now()
    attempt.ended_code, attempt.ended_reason = code[:40], reason
    attempt.save(update_fields=["state", "ended_at", "ended_code", "ended_reason", "finished_version"])
    if stop:
        message = StopMessage(cancelled=True, reason=reason)
        run_id = str(attempt.run_id)
        after_commit(messaging.send_stop, run_id, attempt.number, message)


def end_alive(run: Run, *, reason: str, stop: bool) -> None:
    """End the attempt that holds the lease, if one does."""
    attempt = alive(run)
    if attempt is not None:
        end_attempt(attempt, reason, stop=stop)


def lose_attempt(run: Run, attempt: RunAttempt, reason: str, code: str = "") -> None:
    """An attempt ended without finishing; the reconciler starts the next one. The run is locked."""
    end_attempt(attempt, reason, stop=True, code=code)
    if code == durable.DAMAGED:
        run.checkpoints.filter(uri=attempt.resume_from).update(resumable=False)
    record_event(
        run, "attempt_lost", f"Trainer attempt {attempt.number} ended: {reason}", WARNING, attempt=attempt.number
    )


def apply_heartbeat(heartbeat: Heartbeat, now: datetime) -> tuple[bool, bool]:
    """Extend the lease of the current token. Returns (accepted, first sign of life)."""
    rows = RunAttempt.objects.filter(run_id=heartbeat.run_id, number=heartbeat.attempt, token=heartbeat.token)
    first = rows.filter(state=AttemptState.SENT).update(state=AttemptState.RUNNING, started_at=now)
    accepted = rows.exclude(state=AttemptState.ENDED).update(
        lease_expires_at=now + LEASE,
        heartbeat_at=now,
        worker=heartbeat.worker[:200],
        activity=heartbeat.state[:20],
        cpu_seconds=max(0.0, heartbeat.cpu_seconds),
        memory_bytes=max(0, heartbeat.memory_bytes),
    )
    return bool(accepted), bool(first)


def shorten_taken(num_waiting: int, now: datetime) -> int:
    """Expect a sign of life of jobs that have left the queue, where `num_waiting` are still; returns of how many.

    A worker that takes a job says so at once, so one that keeps silent is lost, or its worker is. The queue is first
    in, first out: the jobs in it are the newest.
    """
    sent = RunAttempt.objects.filter(state=AttemptState.SENT).order_by("-created_at", "-pk")
    taken = list(sent.values_list("pk", flat=True)[num_waiting:])
    silent = RunAttempt.objects.filter(pk__in=taken, state=AttemptState.SENT, created_at__lt=now - ON_ITS_WAY)
    return silent.filter(lease_expires_at__gt=now + LEASE).update(lease_expires_at=now + LEASE)


def lost_without_progress(run: Run) -> list[RunAttempt]:
    """Attempts that started and ended unfinished since one got further than it had begun, newest first.

    A run that goes on may outlive any number of restarts; jobs that nobody took up do not count, nor those that only
    found a checkpoint to be damaged: the next one starts from another.
    """
    newest = run.checkpoints.order_by("-version").first()
    lost = run.attempts.filter(started_at__isnull=False, finished_version__isnull=True, state=AttemptState.ENDED)
    since = lost.exclude(ended_code=durable.DAMAGED).filter(number__gt=newest.attempt if newest else 0)
    return list(
        takewhile(lambda attempt: (attempt.version or 0) <= (attempt.resumed_version or 0), since.order_by("-number"))
    )


def spent_cpu_seconds(run: Run) -> float:
    """CPU seconds of the trainer so far, all attempts."""
    return run.attempts.aggregate(total=Sum("cpu_seconds"))["total"] or 0.0


def expiry_reason(attempt: RunAttempt) -> str:
    """Why a lease expired, for people."""
    if attempt.state == AttemptState.SENT:
        if attempt.lease_expires_at < attempt.created_at + QUEUE_LEASE - ON_ITS_WAY:
            return f"its job left the queue and no trainer gave a sign of it for {LEASE.total_seconds():.0f} s"
        return "no trainer took it up: start a train worker (queue train), or wait for a busy one"
    return f"no heartbeat for {LEASE.total_seconds():.0f} s from {attempt.worker or 'its worker'}"
