"""The supervised examples of an SFT run."""

from django.db import transaction

from apps.runs.models import FINAL_RUN_STATES, Run, RunState
from apps.runs.services.controls import lock_run
from apps.runs.services.lifecycle import advance_soon, end_run
from apps.tasks.services import sft_dataset
from gpu_workers.contracts.runspec import parse_run_spec
from ratchet.problems import Problem


def build_dataset(run: Run) -> str:
    """Store the examples and name them in the run; returns the object key. Idempotent: same tasks, same key."""
    spec = parse_run_spec(run.spec)
    key, problem = "", ""
    try:
        key = sft_dataset(run.suite, spec.max_train_tasks, spec.seed, spec.rollout.num_shots)
    except Problem as error:
        problem = error.detail
    with transaction.atomic():
        locked = lock_run(run)
        if locked.state in FINAL_RUN_STATES or locked.dataset:
            return locked.dataset
        if problem:
            end_run(locked, RunState.FAILED, code="no_references", message=problem)
            return ""
        locked.dataset = key
        locked.save(update_fields=["dataset"])
        advance_soon(locked)
    return key
