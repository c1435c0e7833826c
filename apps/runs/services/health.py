"""The stop rules of one run, asked at every advance: facts from its rows, decisions from `scheduling.halting`."""

import math
from datetime import datetime

from apps.runs.models import AttemptState, Run, RunState
from apps.runs.scheduling import halting
from apps.runs.scheduling.halting import Halt, StepHealth
from gpu_workers.contracts.runspec import Algorithm, RunSpec


def check(run: Run, spec: RunSpec, now: datetime) -> Halt | None:
    """The first rule that is broken, or None."""
    return _check_time(run, spec, now) or _check_steps(run, spec) or _check_groups(run, spec) or _stall(run, spec, now)


def _check_time(run: Run, spec: RunSpec, now: datetime) -> Halt | None:
    limit = spec.limits.max_seconds
    if limit and run.started_at and (now - run.started_at).total_seconds() > limit:
        return Halt("max_seconds", f"The run took longer than its limit of {limit} s.")
    return None


def _check_steps(run: Run, spec: RunSpec) -> Halt | None:
    # Steps whose updates were refused have no numbers, so a little more than the window is looked at.
    count = 2 * spec.health.window + spec.limits.max_skipped_updates
    rows = run.steps.order_by("-number").values_list("number", "values")[:count]
    steps = [
        StepHealth(number, {k: math.nan if v is None else v for k, v in values.items()}) for number, values in rows
    ]
    return halting.check_steps(steps, spec.health, spec.limits.max_skipped_updates)


def _check_groups(run: Run, spec: RunSpec) -> Halt | None:
    if spec.algorithm.kind is Algorithm.SFT:
        return None
    batch_size = spec.rollout.prompts_per_batch
    newest = run.groups.filter(state="closed").order_by("-finished_at").values_list("outcome", "outcome_reason")
    closed = list(newest[: halting.signal_window(batch_size)])
    outcomes = [outcome for outcome, _ in closed]
    reasons = [reason for _, reason in closed]
    return halting.check_errors(outcomes, reasons, spec.limits.max_error_share) or halting.check_signal(
        outcomes, batch_size, spec.health.max_zero_variance_share
    )


def _stall(run: Run, spec: RunSpec, now: datetime) -> Halt | None:
    """Of a run at work: while it is paused, starts or waits for a trainer nobody expects anything to finish."""
    limit = spec.health.stall_seconds
    if run.state != RunState.RUNNING or not limit or _quiet(_last_group(run), now) < limit:
        return None
    if not run.attempts.filter(state=AttemptState.RUNNING).exists():  # its successor may wait behind another run's
        return None
    quiet = min(_quiet(moment, now) for moment in (_last_group(run), *_other_signs(run)))
    return halting.check_stall(quiet, limit, run.status_message)


def _last_group(run: Run) -> datetime | None:
    finished = run.groups.filter(finished_at__isnull=False).order_by("-finished_at")
    return finished.values_list("finished_at", flat=True).first()


def _other_signs(run: Run) -> list[datetime | None]:
    """A step, a trainer that started, the run that began or went on after a pause."""
    return [
        run.steps.order_by("-number").values_list("at", flat=True).first(),
        run.attempts.order_by("-number").values_list("started_at", flat=True).first(),
        run.events.filter(code="running").order_by("-id").values_list("at", flat=True).first(),
        run.started_at,
    ]


def _quiet(moment: datetime | None, now: datetime) -> float:
    return (now - moment).total_seconds() if moment else math.inf
