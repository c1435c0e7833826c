"""The reconciler: one short transaction that looks at a run and does what is due. Safe to call at any time, twice."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from apps.runs import messaging
from apps.runs.models import AttemptState, Run, RunAttempt, RunState
from apps.runs.scheduling.halting import Halt
from apps.runs.services import attempts, batches, groups, health, installs, leases, trainer_reports
from apps.runs.services.admissions import admit_groups
from apps.runs.services.dispatches import dispatch_pending
from apps.runs.services.lifecycle import end_run, halt_run, move_run, set_status
from apps.runs.services.versions import install_versions
from apps.runs.signals import run_trained
from gpu_workers.contracts.runspec import Algorithm, RunSpec, parse_run_spec, stored_spec_hash
from ratchet.commits import after_commit

logger = logging.getLogger(__name__)

ADVANCED, BUSY, IDLE = "advanced", "busy", "idle"
ACTIVE_STATES = (RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.PAUSED)
_BUSY_RETRY_SECONDS = 0.25
_LATE_REPORTS = timedelta(seconds=60)  # of a finished trainer


def advance_run(run_id: UUID | str) -> str:
    """Advance one run. Returns "advanced", "busy" (another call holds it; this one comes back) or "idle"."""
    with transaction.atomic():
        rows = Run.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        run = rows.select_related("project", "policy__base_model", "suite").filter(pk=run_id).first()
        if run is None:
            if not Run.objects.filter(pk=run_id, state__in=ACTIVE_STATES).exists():
                return IDLE
            # What the other call read may be older than what this one was called for.
            after_commit(messaging.request_advance, run_id, _BUSY_RETRY_SECONDS)
            return BUSY
        if run.state not in ACTIVE_STATES:
            return IDLE
        _Reconciliation(run, parse_run_spec(run.spec), timezone.now()).advance()
    return ADVANCED


@dataclass
class _Reconciliation:
    """What one call works with; the run's row is locked."""

    run: Run
    spec: RunSpec
    now: datetime

    def advance(self) -> None:
        if self._refused_spec():
            return
        halt = health.check(self.run, self.spec, self.now)
        if halt is not None:
            halt_run(self.run, halt)
            return
        if not self._has_engines():
            return
        attempt = self._keep_trainer()
        if attempt is None and self.run.state not in ACTIVE_STATES:
            return
        if self.spec.algorithm.kind is Algorithm.SFT:
            self._advance_supervised(attempt)
        else:
            self._advance_reinforced(attempt)

    def _refused_spec(self) -> bool:
        """A spec that is no longer the one that was submitted: no attempt may go on with it."""
        if stored_spec_hash(self.run.spec) == self.run.spec_hash:
            return False
        message = (
            f"The stored RunSpec is not the one that was submitted (its hash is no longer {self.run.spec_hash[:12]}…): "
            "restore it, or submit the spec that is wanted as a new run."
        )
        end_run(self.run, RunState.FAILED, code="spec_changed", message=message)
        return True

    def _has_engines(self) -> bool:
        """Whether the run has its turn, where it needs one. Before a trainer is asked for: two that waited for each
        other's would wait for ever."""
        run = self.run
        if not leases.needs_lease(run) or run.state == RunState.PAUSED:
            return True
        if not leases.has_fleet():
            set_status(run, "waiting_for_fleet", f"The run cannot go on: {leases.NO_FLEET}.")
            return False
        lease = leases.ask_for_run(run)
        if lease.granted_at is None:
            set_status(run, "waiting_for_fleet", leases.waits_for(lease))
            return False
        if run.status_code == "waiting_for_fleet":
            set_status(run, "")
        return True

    # -- the trainer

    def _keep_trainer(self) -> RunAttempt | None:
        """The attempt that holds the lease; a new one when the last was lost. None: not now, or never again."""
        run = self.run
        attempt = attempts.alive(run)
        if attempt is not None:
            self._note_start(attempt)
            return attempt
        if run.state == RunState.PAUSED or self._finished_lately():
            return None
        if self.spec.algorithm.kind is Algorithm.SFT and not run.dataset:
            if run.state == RunState.QUEUED and run.status_code != "building_dataset":
                set_status(run, "building_dataset", "Writing the supervised examples.")
                after_commit(messaging.request_dataset, run.id)
            return None
        lost = attempts.lost_without_progress(run)
        if len(lost) >= self.spec.limits.max_attempts:
            message = f"{len(lost)} trainer attempts in a row ended without a new version. Last: {lost[0].ended_reason}"
            end_run(run, RunState.FAILED, code="trainer_attempts", message=message)
            return None
        attempt = attempts.start_attempt(run, self.spec, self.now)
        if run.state == RunState.QUEUED:
            move_run(
                run, RunState.STARTING, code="waiting_for_trainer", message="Waiting for a trainer to take the run up."
            )
        return attempt

    def _finished_lately(self) -> bool:
        """A trainer has done all its work. Its last reports may be on their way; lost ones are taken over later."""
        finished = self.run.attempts.filter(finished_version__isnull=False).order_by("-number").first()
        if finished is None or finished.ended_at is None:
            return False
        return self.run.version >= (finished.finished_version or 0) or self.now - finished.ended_at < _LATE_REPORTS

    def _note_start(self, attempt: RunAttempt) -> None:
        run = self.run
        if run.state == RunState.QUEUED:
            move_run(run, RunState.STARTING)
        if run.started_at is None and attempt.state == AttemptState.RUNNING:
            run.started_at = attempt.started_at or self.now
            run.save(update_fields=["started_at"])
            set_status(run, "loading", "The trainer loads the model; the fleet confirms version 0.")

    # -- kinds of runs

    def _advance_supervised(self, attempt: RunAttempt | None) -> None:
        run = self.run
        if run.state == RunState.STARTING and attempt is not None and attempt.resumed_version is not None:
            move_run(run, RunState.RUNNING)
        finished = run.attempts.filter(finished_version__isnull=False).order_by("-number").first()
        if finished is not None and run.version >= (finished.finished_version or 0):
            self._finish_training()

    def _advance_reinforced(self, attempt: RunAttempt | None) -> None:
        run, spec, now = self.run, self.spec, self.now
        if run.version >= run.total_steps:
            self._finish_training()
            return
        given_up = installs.repeat_unanswered(run, now)
        if given_up is not None:
            halt_run(run, Halt("engine_down", f"The engines did not confirm: {given_up.message}."))
            return
        if run.started_at is None or attempt is None:
            return
        install_versions(run)
        for group in groups.expire(run.groups.all(), spec.rollout.max_attempts, now):
            installs.ensure_policies(group, run.policy.base_model.slug)
        self._explain(attempt)
        if run.state == RunState.PAUSED:
            return
        if run.state == RunState.STARTING and attempt.resumed_version is not None and run.confirmed_version >= 0:
            move_run(run, RunState.RUNNING)
        if attempt.resumed_version is not None:
            batches.assemble(run, spec, attempt)
            batches.resend_lost(run, attempt, now)
        admit_groups(run, spec, attempt.number)
        dispatch_pending(run, spec, now)

    def _explain(self, attempt: RunAttempt) -> None:
        """Say in the status what the run waits for, when it is not simply at work."""
        run = self.run
        if run.state == RunState.PAUSED:
            return
        waiting = installs.refused(run)
        if waiting is not None:
            set_status(run, "engine_down", f"The engines do not confirm (try {waiting.tries}): {waiting.message}")
        elif attempt.state == AttemptState.SENT:
            set_status(
                run, "waiting_for_trainer", f"Trainer attempt {attempt.number} waits for a trainer to take it up."
            )
        elif attempt.resumed_version is None:
            set_status(run, "loading", f"Trainer attempt {attempt.number} loads the model.")
        else:
            set_status(run, "")

    # -- ends

    def _finish_training(self) -> None:
        run = self.run
        if run.state in (RunState.PAUSED, RunState.QUEUED):
            return
        if run.state == RunState.STARTING:
            move_run(run, RunState.RUNNING)
        groups.cancel_open(run, "the last step was done")
        trainer_reports.adopt_all(run)
        move_run(run, RunState.TRAINED, message=f"All {run.step} steps are done; the best checkpoint is being chosen.")
        run_trained.send(sender=Run, run=run)


def advance_evaluation_groups(now: datetime) -> None:
    """Groups of no run: repeat what got no result in time, and installs that were refused."""
    with transaction.atomic():
        loose = groups.loose_groups()
        groups.expire(loose, groups.EVALUATION_ATTEMPTS, now)
        for group in groups.due(loose, now).exclude(dispatch=0):
            groups.dispatch_group(group)
    with transaction.atomic():
        installs.repeat_unanswered(None, now)
