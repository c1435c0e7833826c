"""The checks every task passes before it is used: sent to workers in chunks, applied once, sent again when lost.

A check judges the reference (must pass), the empty answer and every known-bad answer (must fail), each several times.
Of a suite only so many chunks are under way at once, so that a small suite need not wait for the whole of a large one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.tasks.models import SplitName, Suite, SuiteState, Task, TaskState
from apps.tasks.reports.services import request_report
from apps.tasks.states import SUITE_TRANSITIONS, TASK_TRANSITIONS, check_transition
from gpu_workers.contracts import queues
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import TaskCheck, VerifyItem, VerifyJob
from ratchet.celery import app
from ratchet.commits import after_commit
from ratchet.problems import Problem

# Verifiers that only compare texts: hundreds of verdicts a second, so every one is repeated.
PURE_KINDS = frozenset({VerifierKind.EXACT, VerifierKind.NUMBER, VerifierKind.TOOL_CALL})
CHUNK = 50  # tasks a message: small enough to spread over workers
SANDBOXED_CHUNK = 5  # seconds each: progress shows, and a lost message costs little
LOST_AFTER = timedelta(minutes=5)  # without any check coming back


def start_checks(suite: Suite) -> None:
    """Begin to check every unchecked task of a suite; progress counts from here. The caller holds the suite's row."""
    suite.checks_started_at = timezone.now()
    suite.num_to_check = suite.tasks.filter(state=TaskState.UNCHECKED).count()
    suite.save(update_fields=["checks_started_at", "num_to_check"])
    send_checks(suite)


def send_checks(suite: Suite) -> None:
    """Send the first unchecked tasks of a suite to the workers once the transaction is through."""
    suite.checks_sent_at, suite.checks_sent_to = timezone.now(), 0
    suite.save(update_fields=["checks_sent_at", "checks_sent_to"])
    for _ in range(settings.CHECKS_IN_FLIGHT):
        if not _send_next(suite):
            break


def _send_next(suite: Suite) -> bool:
    """Send the next chunk of unchecked tasks; False where all have been sent. The caller holds the suite's row."""
    pure = suite.verifier.get("kind") in PURE_KINDS
    waiting = suite.tasks.filter(state=TaskState.UNCHECKED, position__gte=suite.checks_sent_to).order_by("position")
    tasks = list(waiting.values_list("pk", "bundle", "position")[: CHUNK if pure else SANDBOXED_CHUNK])
    if not tasks:
        return False
    assert suite.checks_sent_at is not None
    job = VerifyJob(
        job_id=f"verify-{suite.pk}-{int(suite.checks_sent_at.timestamp())}-{tasks[0][2]}",
        suite_id=str(suite.pk),
        items=[VerifyItem(task_id=str(pk), task=bundle) for pk, bundle, _ in tasks],
        repeats=settings.CHECK_REPEATS,
        bad_repeats=0 if pure else settings.CHECK_BAD_REPEATS,
    )
    suite.checks_sent_to = tasks[-1][2] + 1
    suite.save(update_fields=["checks_sent_to"])
    # robust: the suite is stored; what a broker that is down did not take is sent again by resend_checks.
    after_commit(_send, jsonable(job))
    return True


def _send(job: dict[str, object]) -> None:
    app.send_task(queues.JOB_VERIFY, args=[job], queue=queues.VERIFY)


@transaction.atomic
def apply_checks(*, suite_id: UUID | str, checks: Iterable[TaskCheck]) -> Suite | None:
    """Mark tasks ready or quarantined; the suite is finished with its last one. A second report changes nothing.

    None where the suite is gone.
    """
    suite = Suite.objects.select_for_update(of=("self",)).select_related("project").filter(pk=suite_id).first()
    if suite is None:
        return None
    by_id = {check.task_id: check for check in checks}
    tasks = list(suite.tasks.filter(pk__in=by_id, state=TaskState.UNCHECKED))
    for task in tasks:
        _apply(task, by_id[str(task.pk)])
    Task.objects.bulk_update(tasks, ["state", "quarantine_code", "quarantine_message"], batch_size=500)
    suite.checks_sent_at = timezone.now()
    suite.save(update_fields=["checks_sent_at"])
    if suite.state == SuiteState.CHECKING:
        if not suite.tasks.filter(state=TaskState.UNCHECKED).exists():
            finish_checks(suite)
        elif tasks:
            _send_next(suite)
    return suite


def finish_checks(suite: Suite) -> None:
    """Ready, or failed where a split has no usable task left. The caller holds the suite's row."""
    counts = Counter(suite.tasks.values_list("split", "state"))
    splits = [split for split in SplitName.values if any(name == split for name, _ in counts)]
    empty = [split for split in splits if not counts[split, TaskState.READY]]
    num_quarantined = sum(n for (_, state), n in counts.items() if state == TaskState.QUARANTINED)
    state = SuiteState.FAILED if empty else SuiteState.READY
    if state == suite.state:
        return
    check_transition(SUITE_TRANSITIONS, suite.state, state)
    suite.state = state
    suite.status_message = _failure(suite, empty) if empty else _success(num_quarantined)
    suite.save(update_fields=["state", "status_message"])
    after = {"suite": str(suite), "state": suite.state, "num_quarantined": num_quarantined}
    record(tag="system:suite:check", by=None, project=suite.project, subject=suite, after=after)
    if suite.state == SuiteState.READY:
        request_report(suite=suite, by=None)


@transaction.atomic
def recheck_suite(*, suite: Suite, by: User | None) -> Suite:
    """Check the quarantined tasks of a failed suite again, e.g. when the sandbox was missing. Raises Problem 409."""
    require(by, Permission.SUITE_CREATE, suite.project)
    suite = Suite.objects.select_for_update(of=("self",)).select_related("project").get(pk=suite.pk)
    if suite.state == SuiteState.CHECKING:
        return suite
    if suite.state != SuiteState.FAILED:
        raise Problem("suite_frozen", 409, f"{suite} is ready and frozen: import changed content as a new version.")
    check_transition(TASK_TRANSITIONS, TaskState.QUARANTINED, TaskState.UNCHECKED)
    check_transition(SUITE_TRANSITIONS, suite.state, SuiteState.CHECKING)
    suite.tasks.filter(state=TaskState.QUARANTINED).update(
        state=TaskState.UNCHECKED, quarantine_code="", quarantine_message=""
    )
    suite.state, suite.status_message = SuiteState.CHECKING, "Checking again."
    suite.save(update_fields=["state", "status_message"])
    start_checks(suite)
    record(tag="user:suite:recheck", by=by, project=suite.project, subject=suite, after={"suite": str(suite)})
    return suite


@transaction.atomic
def resend_checks() -> int:
    """Send again what no worker has answered for long; returns the number of suites."""
    waiting = Suite.objects.select_for_update(skip_locked=True, of=("self",)).filter(
        state=SuiteState.CHECKING, checks_sent_at__lt=timezone.now() - LOST_AFTER
    )
    suites = list(waiting)
    for suite in suites:
        send_checks(suite)
    return len(suites)


def _apply(task: Task, check: TaskCheck) -> None:
    state = TaskState.READY if check.ok else TaskState.QUARANTINED
    check_transition(TASK_TRANSITIONS, task.state, state)
    task.state = state
    if not check.ok:
        task.quarantine_code, task.quarantine_message = str(check.reason_code)[:40], check.message


def _success(num_quarantined: int) -> str:
    if not num_quarantined:
        return "Every task passed its check."
    tasks = "1 task is" if num_quarantined == 1 else f"{num_quarantined} tasks are"
    return f"{tasks} in quarantine: a check failed, the reason stands with the task."


def _failure(suite: Suite, empty: Sequence[str]) -> str:
    quarantined = suite.tasks.filter(state=TaskState.QUARANTINED)
    codes = Counter(quarantined.values_list("quarantine_code", flat=True))
    code, num = codes.most_common(1)[0]
    example = quarantined.filter(quarantine_code=code).order_by("position").values_list("quarantine_message", flat=True)
    return (
        f"No usable task is left in {' and '.join(empty)}. Most often ({num} tasks): {code}: {example[0]} "
        "Correct the tasks and import again; if the cause was the machine, ask for the checks again."
    )
