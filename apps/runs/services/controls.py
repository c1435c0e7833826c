"""What people ask of a run: pause, resume, cancel, retry; and how evaluations finish it."""

from django.db import transaction

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.policies.models import Policy
from apps.runs.models import FINAL_RUN_STATES, Run, RunState
from apps.runs.services import installs, leases
from apps.runs.services.lifecycle import advance_soon, audit, end_run, move_run
from apps.runs.services.submissions import submit_run
from ratchet.problems import Problem


def lock_run(run: Run) -> Run:
    """The run's row, locked against the reconciler until commit."""
    rows = Run.objects.select_for_update(no_key=True, of=("self",))
    return rows.select_related("project", "policy__base_model", "suite").get(pk=run.pk)


@transaction.atomic
def pause_run(*, run: Run, by: User | None) -> Run:
    """Stop admitting groups and sending batches; what is under way finishes. Idempotent."""
    run = _lock_for(run, by, "paused", (RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.PAUSED))
    if run.state != RunState.PAUSED:
        run.pause_requested = True
        run.save(update_fields=["pause_requested"])
        move_run(run, RunState.PAUSED, code="paused", message="Paused by request; open groups finish.")
        leases.withdraw(run)
        audit(run, "pause", by)
    return run


@transaction.atomic
def resume_run(*, run: Run, by: User | None) -> Run:
    """Go on after a pause. Idempotent."""
    run = _lock_for(run, by, "resumed", (RunState.QUEUED, RunState.STARTING, RunState.RUNNING, RunState.PAUSED))
    if run.state == RunState.PAUSED:
        run.pause_requested = False
        run.save(update_fields=["pause_requested"])
        move_run(run, RunState.QUEUED if run.started_at is None else RunState.STARTING, message="Resumed.")
        audit(run, "resume", by)
        advance_soon(run)
    return run


@transaction.atomic
def cancel_run(*, run: Run, by: User | None, reason: str = "") -> Run:
    """End the run: open groups are cancelled, published checkpoints stay. Idempotent."""
    open_states = tuple(state for state in RunState if state not in FINAL_RUN_STATES)
    run = _lock_for(run, by, "cancelled", (*open_states, RunState.CANCELLED))
    if run.state != RunState.CANCELLED:
        who = by.get_username() if by else "the platform"
        message = f"Cancelled by {who}{': ' + reason if reason else ''}."
        end_run(run, RunState.CANCELLED, code="cancelled", message=message, by=by)
    return run


def retry_run(*, run: Run, by: User | None) -> Run:
    """Submit the same spec again as a new run; the old one stays as it is. While one is under way, that one is it."""
    require(by, Permission.RUN_CONTROL, run.project)
    if run.state not in FINAL_RUN_STATES:
        raise Problem("run_not_final", 409, f"Run {run.number} is {run.state}: cancel it or let it end before a retry.")
    under_way = run.retries.exclude(state__in=FINAL_RUN_STATES).order_by("-number").first()
    return under_way or submit_run(project=run.project, spec=run.spec, by=by, retry_of=run)


@transaction.atomic
def finish_run(*, run: Run, result: Policy | None, message: str) -> Run:
    """A trained run is over: `result` is the policy made of its best checkpoint, None when it has none."""
    run = lock_run(run)
    if run.state in FINAL_RUN_STATES:
        return run
    run.result = result
    run.save(update_fields=["result"])
    move_run(run, RunState.SUCCEEDED, message=message)
    installs.retire_all(run)
    leases.release_run(run)
    return run


def _lock_for(run: Run, by: User | None, verb: str, allowed: tuple[RunState, ...]) -> Run:
    require(by, Permission.RUN_CONTROL, run.project)
    locked = lock_run(run)
    if locked.state not in allowed:
        raise Problem("run_state", 409, f"Run {locked.number} is {locked.state} and cannot be {verb}.")
    return locked
