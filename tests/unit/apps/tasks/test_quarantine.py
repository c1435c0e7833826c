"""A person's word against a check: release, put back, who may, and what stays written down."""

import pytest
from django.db import IntegrityError, transaction

from apps.audit.models import AuditEvent
from apps.tasks.models import SuiteState, Task, TaskState
from apps.tasks.selectors import ready_tasks, representativeness
from apps.tasks.services import put_back_task, release_task
from ratchet.problems import Problem


def test_a_release_keeps_what_the_check_found_and_who_overruled_it(suite, check, engineer):
    check(suite, "t2")
    task = release_task(task=suite.tasks.get(key="t2"), by=engineer, reason=" The reference is right. ")
    task.refresh_from_db()
    assert (task.state, task.released_by, task.release_reason) == (
        TaskState.READY, engineer, "The reference is right.",
    )  # fmt: skip
    assert task.released_at is not None
    assert (task.quarantine_code, task.quarantine_message) == ("WRONG_ANSWER", "the reference of t2 fails")
    assert representativeness(suite).quarantine_reasons == {}
    assert [ready.key for ready in ready_tasks(suite, "train")] == ["t1", "t2"]


def test_a_released_task_can_be_put_back_with_a_reason_and_audited(suite, check, engineer, viewer):
    check(suite, "t2")
    task = release_task(task=suite.tasks.get(key="t2"), by=engineer, reason="looked right")
    for user, reason, status in ((viewer, "wrong", 403), (engineer, "  ", 400)):
        with pytest.raises(Problem) as refused:
            put_back_task(task=task, by=user, reason=reason)
        assert refused.value.status == status
    put_back_task(task=task, by=engineer, reason="the answer has two readings")
    task.refresh_from_db()
    assert (task.state, task.released_at, task.released_by, task.release_reason) == (
        TaskState.QUARANTINED, None, None, "",
    )  # fmt: skip
    assert task.quarantine_code == "WRONG_ANSWER"
    assert [ready.key for ready in ready_tasks(suite, "train")] == ["t1"]
    event = AuditEvent.objects.get(tag="user:task:put_back")
    assert (event.reason, event.actor_name, event.before["released_because"]) == (
        "the answer has two readings", "ed", "looked right",
    )  # fmt: skip
    release_task(task=task, by=engineer, reason="again")


def test_only_a_release_can_be_taken_back(suite, check, owner):
    check(suite, "t2")
    for key in ("t1", "t2"):
        with pytest.raises(Problem, match="not released") as refused:
            put_back_task(task=suite.tasks.get(key=key), by=owner, reason="the policy fails it")
        assert refused.value.status == 409


def test_the_last_task_of_a_split_stays(suite, check, engineer):
    check(suite, "h1", "h2")
    assert suite.state == SuiteState.FAILED
    task = release_task(task=suite.tasks.get(key="h1"), by=engineer, reason="right after all")
    suite.refresh_from_db()
    assert suite.state == SuiteState.READY
    with pytest.raises(Problem, match="last usable"):
        put_back_task(task=task, by=engineer, reason="no")


def test_the_database_refuses_a_release_without_a_reason(suite, check):
    check(suite, "t2")
    with pytest.raises(IntegrityError, match="task_release_has_reason"), transaction.atomic():
        Task.objects.filter(key="t1").update(release_reason="why?")


def test_over_rest(suite, check, engineer, viewer, stranger, client_of):
    check(suite, "t2")
    url = f"/api/v1/tasks/{suite.tasks.get(key='t2').pk}/"
    assert client_of(viewer).post(url + "release/", {"reason": "x"}, format="json").status_code == 403
    assert client_of(stranger).post(url + "release/", {"reason": "x"}, format="json").status_code == 404
    client = client_of(engineer)
    released = client.post(url + "release/", {"reason": "fine"}, format="json")
    assert (released.status_code, released.json()["state"], released.json()["released_by"]) == (200, "ready", "ed")
    assert client.post(url + "put-back/", {}, format="json").status_code == 400
    assert client.post(url + "put-back/", {"reason": "x" * 1001}, format="json").status_code == 400
    back = client.post(url + "put-back/", {"reason": "not fine"}, format="json").json()
    assert (back["state"], back["released_by"], back["release_reason"]) == ("quarantined", None, "")
    assert client.post(url + "put-back/", {"reason": "again"}, format="json").status_code == 409
