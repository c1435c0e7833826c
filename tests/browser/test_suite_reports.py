"""A report asked for and read in the browser, and an episode played again, with workers that answer in this process."""

from collections import deque

import pytest

from apps.runs import messaging as run_messaging
from apps.runs.models import Reproduction
from apps.tasks.models import Suite
from apps.tasks.reports import messaging
from apps.tasks.services import apply_checks, import_suite
from gpu_workers import jobs
from gpu_workers.contracts.messages import TaskCheck
from tests.support.replays import make_task
from tests.support.reproductions import Plane as EpisodePlane
from tests.support.suite_reports import Plane, store_attempts, suite_tasks
from tests.support.worlds import World
from tests.unit.apps.tasks.conftest import make_definition

pytestmark = pytest.mark.browser


@pytest.fixture
def world(worker_world: World) -> World:
    return worker_world


@pytest.fixture
def plane(world, monkeypatch) -> Plane:
    monkeypatch.setattr("apps.tasks.checks.app.send_task", lambda *_, **__: None)
    suite = import_suite(project=world.project, definition=make_definition(slug="crates"), tasks=suite_tasks(), by=None)
    checks = [TaskCheck(task_id=str(pk), ok=True) for pk in suite.tasks.values_list("pk", flat=True)]
    apply_checks(suite_id=suite.pk, checks=checks)
    suite.reports.all().delete()  # the one that a suite gets by itself: the test asks for its own
    made = Plane(Suite.objects.get(pk=suite.pk))
    monkeypatch.setattr(messaging, "request_compute", made.computes.append)
    monkeypatch.setattr(messaging, "request_finish", made.finishes.append)
    monkeypatch.setattr(messaging, "send_probes", made.probes.append)
    monkeypatch.setattr(jobs, "reporter", lambda: type("Reporter", (), {"send": lambda _, r: made.reports.append(r)})())
    return made


def test_a_report_is_asked_for_followed_and_opened_down_to_its_tasks(world, plane, sign_in):
    store_attempts(plane.suite, "t1", "3", "4", "5", "3")
    visit = sign_in(world.engineer)
    visit.go(f"/suites/{plane.suite.pk}/")
    visit.click("text=Compute the report")
    visit.until("location.pathname.endsWith('/report/')")
    visit.until("document.querySelector('[data-report-progress] progress')")
    plane.work()
    visit.until("document.body.textContent.includes('Do not rely on this suite yet')")
    visit.click("tr:has-text('Held-out prompts that training shows') a")
    visit.until("document.querySelector('#list')")
    assert visit.page.inner_text("#list") == "Held-out prompts that training shows: the tasks"
    assert "secret" not in visit.page.content()
    assert visit.refused() == []


def test_an_episode_is_played_again_from_its_page(world, sign_in, monkeypatch):
    plane = EpisodePlane(world, deque(), [])
    monkeypatch.setattr(run_messaging, "send_reproduce", plane.sent.append)
    monkeypatch.setattr(
        jobs, "reporter", lambda: type("Reporter", (), {"send": lambda _, r: plane.reports.append(r)})()
    )
    episode = plane.store_episode(make_task(), "count()", "roll()", "count()", "Two.")
    visit = sign_in(world.engineer)
    visit.go(f"/episodes/{episode.pk}/")
    visit.click("text=Reproduce")
    visit.until("document.body.textContent.includes('A rollout worker will take it up')")
    plane.work()
    visit.go(f"/episodes/{episode.pk}/")
    visit.until("document.body.textContent.includes('1 of 3 tool outputs differs')")
    assert Reproduction.objects.get().outcome == "same"
    assert visit.refused() == []
