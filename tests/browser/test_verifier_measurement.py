"""A verifier measured and read in the browser, down to a false pass, with a worker that answers in this process."""

import pytest

from apps.tasks.measurements import messaging
from gpu_workers import jobs
from gpu_workers.contracts.enums import VerifierKind
from tests.support.measurements import Plane, function_tasks, imported
from tests.support.worlds import World

pytestmark = pytest.mark.browser


@pytest.fixture
def world(worker_world: World) -> World:
    return worker_world


@pytest.fixture
def plane(world, monkeypatch) -> Plane:
    monkeypatch.setattr("apps.tasks.checks.app.send_task", lambda *_, **__: None)
    kind = VerifierKind.PROGRAM
    made = Plane(imported(world.project, function_tasks(), slug="functions", verifier_kind=kind))
    monkeypatch.setattr(messaging, "send_job", made.sent.append)
    monkeypatch.setattr(jobs, "reporter", lambda: type("Reporter", (), {"send": lambda _, r: made.reports.append(r)})())
    return made


def test_a_verifier_is_measured_followed_and_opened_down_to_a_false_pass(world, plane, sign_in):
    visit = sign_in(world.engineer)
    visit.go(f"/suites/{plane.suite.pk}/")
    visit.click("text=About this measurement")
    visit.click("text=Measure the verifier")
    visit.until("document.querySelector('[data-progress] progress')")
    plane.work()
    visit.until("document.body.textContent.includes('By kind of change')")
    visit.click("text=All")
    visit.until("document.querySelector('#list').textContent === 'Every candidate'")
    visit.click("tr:has-text('t1') >> a[href^='/measured/']")
    visit.until("location.pathname.startsWith('/measured/')")
    assert "What was changed" in visit.page.inner_text("main")
    assert "secret" not in visit.page.content()
    assert visit.refused() == []
