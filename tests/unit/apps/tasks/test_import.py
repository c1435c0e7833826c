"""Import of suites: what is refused, what is stored, what is sent to be checked."""

from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from apps.audit.models import AuditEvent
from apps.tasks.models import Suite, SuiteState, Task, TaskState
from apps.tasks.selectors import load_bundle, ready_tasks, representativeness, resolve_suite
from apps.tasks.services import apply_checks, import_suite, recheck_suite, release_task, resend_checks, sft_dataset
from apps.tasks.suites.definition import FailureMode, SuiteDefinition
from gpu_workers.contracts.enums import Split, VerifierKind
from gpu_workers.contracts.messages import TaskCheck, VerifyJob
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from ratchet.problems import Problem
from ratchet.store import get_store


def remake(suite: Suite, **changes) -> SuiteDefinition:
    """The definition a stored suite came from, with changes."""
    values = {
        "slug": suite.slug,
        "title": suite.title,
        "description": suite.description,
        "distribution": suite.distribution,
        "failure_modes": tuple(FailureMode(**mode) for mode in suite.failure_modes),
        "verifier_kind": VerifierKind.NUMBER,
    }
    return SuiteDefinition(**{**values, **changes})


def contents(suite: Suite) -> list:
    return [(Split(task.split), load_bundle(task)) for task in suite.tasks.all()]


def extra(key: str, question: str, split: Split) -> tuple:
    verifier = VerifierSpec(kind=VerifierKind.NUMBER, expected=1)
    return split, TaskBundle(key=key, prompt=[Message(role="user", content=question)], verifier=verifier)


def test_a_suite_is_stored_with_its_content_and_sent_to_be_checked(
    project, engineer, suite, sent, django_capture_on_commit_callbacks
):
    tasks = [*contents(suite), extra("more", "9 - 8?", Split.TRAIN)]
    with django_capture_on_commit_callbacks(execute=True):
        second = import_suite(project=project, definition=remake(suite), tasks=tasks, by=engineer)
    assert (second.version, second.state, second.created_by) == (2, SuiteState.CHECKING, engineer)
    assert second.content_hash != suite.content_hash
    ((name, job, queue),) = sent
    assert (name, queue) == ("ratchet.verify_tasks", "verify")
    items = msgspec.convert(job, VerifyJob).items
    assert [item.task for item in items] == [task.bundle for task in second.tasks.all()]
    stored = msgspec.json.decode(get_store().get(items[-1].task), type=TaskBundle)
    assert stored.prompt[0].content == "9 - 8?"
    assert list(second.tasks.values_list("key", flat=True))[-1] == "more"
    assert AuditEvent.objects.filter(tag="user:suite:import", actor_name="ed").count() == 1


def test_many_tasks_go_in_chunks(project, suite, sent, django_capture_on_commit_callbacks):
    many = [extra(f"m{n}", f"{n}?", Split.HELDOUT if n % 2 else Split.TRAIN) for n in range(120)]
    with django_capture_on_commit_callbacks(execute=True):
        import_suite(project=project, definition=remake(suite, slug="many"), tasks=many, by=None)
    assert [len(job["items"]) for _, job, _ in sent] == [50, 50, 20]
    assert len({job["job_id"] for _, job, _ in sent}) == 3


def test_identical_content_gives_the_version_that_is_there(project, suite, check, sent):
    check(suite)
    tasks = contents(suite)
    again = import_suite(project=project, definition=remake(suite), tasks=tasks[::-1], by=None)
    assert (again.pk, Suite.objects.count()) == (suite.pk, 1)
    redeclared = import_suite(project=project, definition=remake(suite, distribution="Other."), tasks=tasks, by=None)
    assert (redeclared.version, redeclared.content_hash) == (2, suite.content_hash)
    moved = [(Split.DEV if bundle.key == "t2" else split, bundle) for split, bundle in tasks]
    assert (
        import_suite(project=project, definition=remake(suite), tasks=moved, by=None).content_hash != suite.content_hash
    )


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"distribution": "  "}, "distribution"),
        ({"failure_modes": ()}, "failure_modes"),
        ({"slug": "no way"}, "slug"),
        ({"title": ""}, "title"),
    ],
)
def test_a_suite_that_declares_too_little_is_refused(project, suite, changes, path):
    with pytest.raises(Problem) as refused:
        import_suite(project=project, definition=remake(suite, **changes), tasks=contents(suite), by=None)
    assert (refused.value.status, [error["path"] for error in refused.value.errors]) == (422, [path])
    assert Suite.objects.count() == 1


def test_a_suite_without_held_out_tasks_is_refused(project, suite):
    tasks = [(split, bundle) for split, bundle in contents(suite) if split is not Split.HELDOUT]
    with pytest.raises(Problem) as refused:
        import_suite(project=project, definition=remake(suite), tasks=tasks, by=None)
    assert "heldout" in refused.value.errors[0]["message"]


def test_overlapping_splits_and_repeated_keys_name_the_tasks(project, suite):
    tasks = [*contents(suite), extra("copy", "  1 +   2? ", Split.HELDOUT), extra("t1", "new?", Split.DEV)]
    with pytest.raises(Problem) as refused:
        import_suite(project=project, definition=remake(suite), tasks=tasks, by=None)
    assert refused.value.errors == [
        {"path": "task t1", "message": "the key is used twice, in train and dev"},
        {"path": "task copy", "message": "asks in heldout what task t1 asks in train: splits overlap"},
    ]
    assert Task.objects.count() == 5


def test_only_members_with_the_right_import(project, suite, viewer, stranger):
    for user, status in ((viewer, 403), (stranger, 404)):
        with pytest.raises(Problem) as refused:
            import_suite(project=project, definition=remake(suite), tasks=contents(suite), by=user)
        assert refused.value.status == status


def test_checks_make_a_suite_ready_with_the_bad_task_in_quarantine(project, suite, check):
    with pytest.raises(Problem, match="not ready"):
        resolve_suite(project, "sums")
    check(suite, "t2")
    assert (suite.state, suite.status_message[:9]) == (SuiteState.READY, "1 task is")
    assert [task.key for task in ready_tasks(suite, "train")] == ["t1"]
    bad = suite.tasks.get(key="t2")
    assert (bad.state, bad.quarantine_code, bad.quarantine_message) == (
        TaskState.QUARANTINED,
        "WRONG_ANSWER",
        "the reference of t2 fails",
    )
    assert resolve_suite(project, "sums") == resolve_suite(project, "sums@1") == suite
    for ref in ("sums@2", "none", "sums@x"):
        with pytest.raises(Problem, match="unknown"):
            resolve_suite(project, ref)


def test_checks_in_parts_and_twice_change_nothing_more(suite, check):
    first, second = suite.tasks.filter(key__in=["t1", "t2"])
    checks = [
        TaskCheck(task_id=str(first.pk), ok=True),
        TaskCheck(task_id=str(second.pk), ok=False, reason_code="NO_OUTPUT"),
    ]
    apply_checks(suite_id=suite.pk, checks=checks)
    suite.refresh_from_db()
    assert suite.state == SuiteState.CHECKING
    apply_checks(suite_id=suite.pk, checks=[TaskCheck(task_id=str(first.pk), ok=False, reason_code="NO_OUTPUT")])
    first.refresh_from_db()
    assert first.state == TaskState.READY
    check(suite)
    assert suite.state == SuiteState.READY
    apply_checks(suite_id=suite.pk, checks=checks)
    assert AuditEvent.objects.filter(tag="system:suite:check").count() == 1
    assert apply_checks(suite_id=suite.project_id, checks=checks) is None


def test_a_split_without_usable_task_fails_the_suite_and_can_be_checked_again(
    suite, engineer, viewer, check, sent, django_capture_on_commit_callbacks
):
    check(suite, "h1", "h2", "t1", code="SANDBOX_UNAVAILABLE")
    assert suite.state == SuiteState.FAILED
    assert "heldout" in suite.status_message and "SANDBOX_UNAVAILABLE" in suite.status_message
    with pytest.raises(Problem):
        recheck_suite(suite=suite, by=viewer)
    with django_capture_on_commit_callbacks(execute=True):
        again = import_suite(project=suite.project, definition=remake(suite), tasks=contents(suite), by=engineer)
    assert (again.pk, again.state) == (suite.pk, SuiteState.CHECKING)
    assert len(sent[-1][1]["items"]) == 3
    check(suite)
    assert (suite.state, suite.tasks.filter(quarantine_code="").count()) == (SuiteState.READY, 5)
    with pytest.raises(Problem, match="frozen"):
        recheck_suite(suite=suite, by=engineer)


def test_lost_checks_are_sent_again(suite, check, sent, django_capture_on_commit_callbacks):
    apply_checks(suite_id=suite.pk, checks=[TaskCheck(task_id=str(suite.tasks.first().pk), ok=True)])
    with django_capture_on_commit_callbacks(execute=True):
        assert resend_checks() == 0
    Suite.objects.update(checks_sent_at=timezone.now() - timedelta(minutes=6))
    with django_capture_on_commit_callbacks(execute=True):
        assert resend_checks() == 1
    assert [len(job["items"]) for _, job, _ in sent] == [4]
    check(suite)
    Suite.objects.update(checks_sent_at=timezone.now() - timedelta(minutes=6))
    assert resend_checks() == 0


def test_a_release_needs_right_reason_and_quarantine_and_is_audited(suite, check, engineer, viewer):
    check(suite, "h1", "h2")
    task = suite.tasks.get(key="h1")
    for user, reason, status in ((viewer, "checked by hand", 403), (engineer, " ", 400)):
        with pytest.raises(Problem) as refused:
            release_task(task=task, by=user, reason=reason)
        assert refused.value.status == status
    release_task(task=task, by=engineer, reason="checked by hand")
    suite.refresh_from_db()
    assert suite.state == SuiteState.READY
    event = AuditEvent.objects.get(tag="user:task:release")
    assert (event.before["code"], event.reason, event.actor_name) == ("WRONG_ANSWER", "checked by hand", "ed")
    with pytest.raises(Problem, match="ready"):
        release_task(task=task, by=engineer, reason="again")


def test_representativeness_counts_and_finds_repetitions(project, suite, check):
    tasks = [*contents(suite), extra("twin", "9?", Split.TRAIN), extra("twin2", "9?", Split.TRAIN)]
    tasks += [(Split.HELDOUT, TaskBundle(key="h3", prompt=[Message(role="user", content="x")], cluster="plus",
                                         verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=1)))]  # fmt: skip
    second = import_suite(project=project, definition=remake(suite), tasks=tasks, by=None)
    check(second, "t2", code="NO_OUTPUT")
    found = representativeness(second)
    train = next(counts for counts in found.splits if counts.split == "train")
    assert (train.total, train.ready, train.quarantined, train.clusters) == (4, 3, 1, 1)
    assert [counts.split for counts in found.splits] == ["train", "dev", "heldout"]
    assert {row.tag: row.splits for row in found.tags}["small"] == {"train": 2, "dev": 1, "heldout": 2}
    assert found.quarantine_reasons == {"NO_OUTPUT": 1}
    assert (found.num_duplicates, found.shared_clusters) == (1, ["plus"])
    assert found.largest_cluster_share == pytest.approx(1 / 3)


def test_the_supervised_dataset_holds_only_usable_train_references(project, suite, check):
    check(suite, "t2")
    key = sft_dataset(suite)
    lines = [msgspec.json.decode(line) for line in get_store().get(key).splitlines()]
    assert lines == [
        {"prompt": [{"role": "user", "content": "1 + 2?"}], "completion": [{"role": "assistant", "content": "3"}]}
    ]
    assert sft_dataset(suite) == key
    Task.objects.filter(key="t1").update(state=TaskState.QUARANTINED)
    with pytest.raises(Problem, match="reference"):
        sft_dataset(suite)


def test_the_supervised_dataset_draws_by_seed(project, suite, check):
    check(suite)
    full = get_store().get(sft_dataset(suite)).splitlines()
    draws = {get_store().get(sft_dataset(suite, max_tasks=1, seed=seed)) for seed in range(12)}
    assert len(full) == 2
    assert {draw.strip() for draw in draws} == set(full)
