"""A person's word against a check: release a task from quarantine, or put a released one back."""

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.tasks.checks import finish_checks
from apps.tasks.models import Suite, SuiteState, Task, TaskState
from apps.tasks.reports.services import request_report
from apps.tasks.selectors import is_protected
from apps.tasks.states import TASK_TRANSITIONS, check_transition
from ratchet.problems import Problem

_RELEASE_FIELDS = ["state", "released_at", "released_by", "release_reason"]


@transaction.atomic
def release_task(*, task: Task, by: User | None, reason: str) -> Task:
    """Take a task out of quarantine. What its check found stays with it. Raises Problem 409 unless it is in there."""
    require(by, Permission.TASK_RELEASE, task.suite.project)
    reason = _reason(reason, "Say why the check was wrong about this task.")
    suite, task = _lock(task)
    if task.state != TaskState.QUARANTINED:
        raise Problem("not_quarantined", 409, f"Task {task.key} is {task.get_state_display().lower()}.")
    check_transition(TASK_TRANSITIONS, task.state, TaskState.READY)
    # What the check said may quote the task, and the audit trail has more readers than held-out content.
    message = "" if is_protected(task.split) else task.quarantine_message
    before = {"state": task.state, "code": task.quarantine_code, "message": message}
    task.state, task.released_at, task.released_by, task.release_reason = TaskState.READY, timezone.now(), by, reason
    task.save(update_fields=_RELEASE_FIELDS)
    if suite.state == SuiteState.FAILED:
        finish_checks(suite)
    _renew_report(suite)
    after = {"state": task.state, "task": task.key, "suite": str(suite)}
    record(
        tag="user:task:release", by=by, project=suite.project, subject=task, before=before, after=after, reason=reason
    )
    return task


@transaction.atomic
def put_back_task(*, task: Task, by: User | None, reason: str) -> Task:
    """Quarantine a released task again, for what its check had found. Raises Problem 409 for any other task.

    Only a release can be taken back: whoever could set aside tasks that passed could also set aside those a policy
    fails. The last usable task of a split stays, since runs and gates count on the split.
    """
    require(by, Permission.TASK_RELEASE, task.suite.project)
    reason = _reason(reason, "Say why this task should not have been released.")
    suite, task = _lock(task)
    if task.released_at is None:
        raise Problem("not_released", 409, f"Task {task.key} was not released by a person.")
    if not suite.tasks.filter(split=task.split, state=TaskState.READY).exclude(pk=task.pk).exists():
        raise Problem("last_task", 409, f"Task {task.key} is the last usable one of split {task.split}.")
    check_transition(TASK_TRANSITIONS, task.state, TaskState.QUARANTINED)
    before = {"state": task.state, "released_because": task.release_reason}
    task.state, task.released_at, task.released_by, task.release_reason = TaskState.QUARANTINED, None, None, ""
    task.save(update_fields=_RELEASE_FIELDS)
    _renew_report(suite)
    after = {"state": task.state, "code": task.quarantine_code, "task": task.key, "suite": str(suite)}
    record(
        tag="user:task:put_back", by=by, project=suite.project, subject=task, before=before, after=after, reason=reason
    )
    return task


def _renew_report(suite: Suite) -> None:
    if suite.state == SuiteState.READY:
        request_report(suite=suite, by=None)


def _reason(reason: str, ask: str) -> str:
    reason = reason.strip()
    if not reason:
        raise Problem("invalid", 400, ask, [{"path": "reason", "message": "is empty"}])
    return reason


def _lock(task: Task) -> tuple[Suite, Task]:
    """The rows as they are now: the suite first, as everywhere."""
    suite = Suite.objects.select_for_update(of=("self",)).select_related("project").get(pk=task.suite_id)
    return suite, Task.objects.select_for_update().get(pk=task.pk)
