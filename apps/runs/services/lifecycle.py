"""Changes of a run's state, and what ends with it."""

from typing import Any

from django.utils import timezone

from apps.accounts.models import User
from apps.audit.services import record
from apps.runs import messaging, states
from apps.runs.events import ERROR, INFO, WARNING, record_event
from apps.runs.models import FINAL_RUN_STATES, BatchState, EventLevel, Run, RunState
from apps.runs.scheduling.halting import Halt
from apps.runs.services import attempts, groups, installs, leases
from apps.runs.signals import run_changed
from ratchet.commits import after_commit

_LEVELS: dict[str, EventLevel] = {RunState.FAILED: ERROR, RunState.HALTED: ERROR, RunState.CANCELLED: WARNING}


def move_run(run: Run, target: RunState, *, code: str = "", message: str = "", by: User | None = None) -> None:
    """Change the state of a locked run, say so, and audit final states."""
    before = run.state
    run.state = states.move_run(run.state, target)
    run.status_code, run.status_message = code, message
    if target in FINAL_RUN_STATES:
        run.finished_at = timezone.now()
    run.save(update_fields=["state", "status_code", "status_message", "finished_at"])
    record_event(run, target, message or RunState(target).label, _LEVELS.get(target, INFO), status_code=code)
    run_changed.send(sender=Run, run=run)
    if target in FINAL_RUN_STATES:
        after = {"state": target, "status_code": code}
        tag = f"{'user' if by else 'system'}:run:{target}"
        record(tag=tag, by=by, project=run.project, subject=run, before={"state": before}, after=after, reason=message)


def set_status(run: Run, code: str, message: str = "") -> None:
    """Explain the current state; writes and announces only what changed."""
    if (run.status_code, run.status_message) == (code, message):
        return
    run.status_code, run.status_message = code, message
    run.save(update_fields=["status_code", "status_message"])
    run_changed.send(sender=Run, run=run)


def end_run(run: Run, target: RunState, *, code: str = "", message: str = "", by: User | None = None) -> None:
    """End a locked run early: its trainer is told to stop, open groups are cancelled, adapters retired."""
    attempts.end_alive(run, reason=message or str(target), stop=True)
    abandon_batches(run)
    groups.cancel_open(run, reason=f"the run was {target}")
    move_run(run, target, code=code, message=message, by=by)
    installs.retire_all(run)
    leases.release_run(run)


def halt_run(run: Run, halt: Halt) -> None:
    """End a locked run because a rule says so; the message names the last checkpoint from before the rule was broken.

    For rules of the apps above as well: they lock the run, and see to it that it is not over yet.
    """
    good = run.checkpoints.exclude(uri="")
    if halt.since_step:
        good = good.filter(version__lt=halt.since_step)
    run.last_good_version = good.order_by("-version").values_list("version", flat=True).first()
    run.save(update_fields=["last_good_version"])
    none = "There is no good checkpoint: start again from the policy it began with."
    last = none if run.last_good_version is None else f"Last good checkpoint: version {run.last_good_version}."
    end_run(run, RunState.HALTED, code=halt.code, message=f"{halt.message} {last}")


def abandon_batches(run: Run) -> None:
    """Batches that the trainer will not take any more."""
    for batch in run.batches.filter(state=BatchState.SENT):
        batch.state = states.move_batch(batch.state, BatchState.ABANDONED)
        batch.save(update_fields=["state"])


def advance_soon(run: Run) -> None:
    """Have the run advanced once this transaction is committed."""
    after_commit(messaging.request_advance, run.id)


def audit(run: Run, verb: str, by: User | None, **after: Any) -> None:
    """Audit what a person asked of a run."""
    record(tag=f"user:run:{verb}", by=by, project=run.project, subject=run, after=after)
