"""The suite's page: how far the checks are, what the import changed, and who may release what."""

import pytest
from django.test import Client

from apps.tasks.services import import_suite, release_task
from gpu_workers.contracts.enums import Split
from tests.unit.apps.tasks.conftest import make_definition, make_task


@pytest.fixture
def page(client: Client):
    def get(user, suite) -> str:
        client.force_login(user)
        answer = client.get(f"/suites/{suite.pk}/")
        assert answer.status_code == 200
        return answer.content.decode()

    return get


def test_a_suite_that_is_checked_shows_how_far(suite, viewer, page, client):
    shown = page(viewer, suite)
    assert "0 of 5 tasks" in shown and f"/api/v1/suites/{suite.pk}/progress/" in shown and "js/progress.js" in shown
    assert "0 of 5" in client.get("/suites/").content.decode()


def test_notes_of_the_import_are_shown_as_text(project, engineer, sent, page):
    notes = [{"path": "task <b>", "message": "<script>alert(1)</script> is denied"}]
    tasks = [make_task("a", "1?"), make_task("b", "2?", Split.HELDOUT)]
    suite = import_suite(project=project, definition=make_definition(), tasks=tasks, by=engineer, notes=notes)
    shown = page(engineer, suite)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; is denied" in shown and "<script>alert" not in shown


def test_only_who_may_release_finds_the_form(suite, check, engineer, viewer, page):
    check(suite, "t2")
    url = f"/api/v1/tasks/{suite.tasks.get(key='t2').pk}/"
    assert f"{url}release/" in page(engineer, suite)
    assert "release/" not in page(viewer, suite) and "the reference of t2 fails" in page(viewer, suite)
    release_task(task=suite.tasks.get(key="t2"), by=engineer, reason="looked <i>right</i>")
    shown = page(engineer, suite)
    assert f"{url}put-back/" in shown and "looked &lt;i&gt;right&lt;/i&gt;" in shown
    assert "put-back/" not in page(viewer, suite) and "looked" in page(viewer, suite)


def test_what_a_held_out_task_failed_on_stays_closed(suite, check, engineer, approver, page):
    check(suite, "h1")
    assert "the reference of h1 fails" not in page(engineer, suite)
    assert "the reference of h1 fails" in page(approver, suite)


def test_a_failed_suite_can_be_checked_again(suite, check, engineer, viewer, page):
    check(suite, "h1", "h2")
    assert f"/api/v1/suites/{suite.pk}/recheck/" in page(engineer, suite)
    assert "recheck/" not in page(viewer, suite)
