"""Checks under way: how often each verdict is repeated, how far they are, and what no run may use."""

from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from apps.tasks.models import Suite, SuiteState
from apps.tasks.selectors import check_progress, resolve_suite
from apps.tasks.services import apply_checks, import_suite, recheck_suite
from gpu_workers.contracts import queues
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.messages import TaskCheck, VerifyJob
from ratchet.problems import Problem
from tests.unit.apps.tasks.conftest import make_definition, make_task


def jobs(sent) -> list[VerifyJob]:
    return [msgspec.convert(job, VerifyJob) for name, job, _ in sent if name == queues.JOB_VERIFY]


def test_texts_are_compared_three_times_and_sandboxed_wrong_answers_once(
    project, sent, settings, django_capture_on_commit_callbacks
):
    tasks = [make_task(f"t{n}", f"{n}?", Split.HELDOUT if n % 2 else Split.TRAIN) for n in range(12)]
    with django_capture_on_commit_callbacks(execute=True):
        import_suite(project=project, definition=make_definition(), tasks=tasks, by=None)
    ((job,), sent[:]) = (jobs(sent), [])
    assert (job.repeats, job.bad_repeats, len(job.items)) == (3, 0, 12)
    with django_capture_on_commit_callbacks(execute=True):
        settings.CHECK_BAD_REPEATS = 2
        definition = make_definition(slug="code", verifier_kind=VerifierKind.PROGRAM)
        import_suite(project=project, definition=definition, tasks=tasks, by=None)
    assert [(job.repeats, job.bad_repeats, len(job.items)) for job in jobs(sent)] == [(3, 2, 5), (3, 2, 5), (3, 2, 2)]


def test_of_a_large_suite_so_many_messages_are_under_way_and_a_small_one_need_not_wait(
    project, sent, settings, django_capture_on_commit_callbacks
):
    settings.CHECKS_IN_FLIGHT = 2
    code = {"verifier_kind": VerifierKind.PROGRAM}
    large = [make_task(f"t{n}", f"{n}?", Split.HELDOUT if n % 2 else Split.TRAIN) for n in range(23)]
    with django_capture_on_commit_callbacks(execute=True):
        first = import_suite(project=project, definition=make_definition(slug="large", **code), tasks=large, by=None)
        import_suite(project=project, definition=make_definition(slug="small", **code), tasks=large[:4], by=None)
    assert [len(job.items) for job in jobs(sent)] == [5, 5, 4], "the small one is behind two messages, not five"
    done: list[str] = []
    waiting = [job for job in jobs(sent) if job.suite_id == str(first.pk)]
    while waiting:
        job = waiting.pop(0)
        done += [item.task_id for item in job.items]
        sent.clear()
        with django_capture_on_commit_callbacks(execute=True):
            apply_checks(suite_id=first.pk, checks=[TaskCheck(task_id=item.task_id, ok=True) for item in job.items])
            apply_checks(suite_id=first.pk, checks=[TaskCheck(task_id=item.task_id, ok=True) for item in job.items])
        waiting += [found for found in jobs(sent) if found.suite_id == str(first.pk)]
        assert len(waiting) <= 2
    assert len(done) == len(set(done)) == 23
    first.refresh_from_db()
    assert first.state == SuiteState.READY


def test_progress_counts_from_the_last_start(suite, engineer, check, client_of):
    url = f"/api/v1/suites/{suite.pk}/progress/"
    seen = client_of(engineer).get(url).json()
    assert seen == {
        "state": "checking", "mark": "checking", "done": 0, "total": 5, "ready": 0, "quarantined": 0,
        "left_seconds": None,
    }  # fmt: skip
    first, second = suite.tasks.filter(key__in=["t1", "t2"])
    bad = TaskCheck(task_id=str(second.pk), ok=False, reason_code="NO_OUTPUT")
    apply_checks(suite_id=suite.pk, checks=[TaskCheck(task_id=str(first.pk), ok=True), bad])
    Suite.objects.update(checks_started_at=timezone.now() - timedelta(seconds=20))
    suite.refresh_from_db()
    progress = check_progress(suite)
    assert (progress.done, progress.total, progress.ready, progress.quarantined) == (2, 5, 1, 1)
    assert progress.left_seconds == pytest.approx(30, abs=2)
    listed = client_of(engineer).get(f"/api/v1/suites/{suite.pk}/").json()
    assert (listed["num_unchecked"], listed["num_ready"], listed["num_quarantined"]) == (3, 1, 1)
    check(suite, "h1", "h2")
    assert suite.state == SuiteState.FAILED
    assert check_progress(suite).left_seconds is None
    recheck_suite(suite=suite, by=engineer)
    suite.refresh_from_db()
    assert (check_progress(suite).done, check_progress(suite).total) == (0, 3)


def test_progress_is_for_members(suite, stranger, client_of):
    assert client_of(stranger).get(f"/api/v1/suites/{suite.pk}/progress/").status_code == 404


@pytest.mark.parametrize(
    ("changes", "missing"), [({"distribution": " "}, "distribution"), ({"failure_modes": []}, "failure modes")]
)
def test_no_run_may_use_a_suite_that_declares_too_little(project, suite, check, changes, missing):
    check(suite)
    assert resolve_suite(project, "sums") == suite
    Suite.objects.update(**changes)
    with pytest.raises(Problem, match=missing) as refused:
        resolve_suite(project, "sums")
    assert (refused.value.status, refused.value.code) == (400, "suite_undeclared")


def test_no_run_may_use_a_suite_without_a_held_out_set(project, suite, check):
    check(suite)
    suite.tasks.filter(split="heldout").update(split="dev")
    with pytest.raises(Problem, match="held-out"):
        resolve_suite(project, "sums@1")


def test_notes_of_an_import_are_kept_and_shown(project, engineer, sent, client_of):
    notes = [{"path": "task a: task.toml network_mode", "message": "public is imported as denied"}]
    tasks = [make_task("a", "1?"), make_task("b", "2?", Split.HELDOUT)]
    suite = import_suite(project=project, definition=make_definition(), tasks=tasks, by=engineer, notes=notes)
    assert client_of(engineer).get(f"/api/v1/suites/{suite.pk}/").json()["import_notes"] == notes
