"""A task whose verdict did not repeat: set aside by the platform, for a person to release."""

from django.db import transaction

from apps.audit.services import record
from apps.tasks.models import Suite, Task, TaskState
from apps.tasks.states import TASK_TRANSITIONS, check_transition
from gpu_workers.contracts.enums import ReasonCode

_FIELDS = ["state", "quarantine_code", "quarantine_message", "released_at", "released_by", "release_reason"]


@transaction.atomic
def mark_flaky(*, task: Task, message: str, episode: str = "") -> bool:
    """Quarantine a ready task with VERIFIER_FLAKY. False where it is in quarantine, or not yet checked, already.

    `message` says what did not repeat; it is shown only to who may read the task.
    """
    suite = Suite.objects.select_for_update(of=("self",)).select_related("project").get(pk=task.suite_id)
    task = Task.objects.select_for_update(of=("self",)).get(pk=task.pk)
    if task.state != TaskState.READY:
        return False
    check_transition(TASK_TRANSITIONS, task.state, TaskState.QUARANTINED)
    before = {"state": task.state}
    task.state, task.quarantine_code = TaskState.QUARANTINED, str(ReasonCode.VERIFIER_FLAKY)
    task.quarantine_message = message
    task.released_at = task.released_by = None  # what a person had released it from is not what was found now
    task.release_reason = ""
    task.save(update_fields=_FIELDS)
    after = {"state": task.state, "code": task.quarantine_code, "task": task.key, "suite": str(suite)}
    if episode:
        after["episode"] = episode
    record(tag="system:task:flaky", by=None, project=suite.project, subject=task, before=before, after=after)
    return True
