"""The pages of a report and of a contract: what is shown, what is closed, what is escaped."""

import msgspec
from django.test import Client

from apps.tasks.models import Task
from apps.tasks.reports.models import SuiteReport
from gpu_workers.contracts.environment import EnvironmentContract
from gpu_workers.contracts.tasks import TaskBundle
from ratchet.store import get_store
from tests.support.evaluations import committed
from tests.support.suite_reports import Plane, store_attempts


def get(user, path: str, status: int = 200) -> str:
    client = Client()
    client.force_login(user)
    response = client.get(path)
    assert response.status_code == status, path
    return response.content.decode()


def test_before_during_and_after(plane: Plane, engineer, viewer):
    suite_url = f"/suites/{plane.suite.pk}/"
    url = f"{suite_url}report/"
    api = f"/api/v1/suites/{plane.suite.pk}/report/"
    assert "no report yet" in get(viewer, suite_url)
    assert f'data-post="{api}"' in get(engineer, suite_url)
    assert f'data-post="{api}"' in get(engineer, url)
    assert "data-post" not in get(viewer, url)
    plane.request()
    running = get(viewer, url)
    assert f'data-report-progress="{api}"' in running
    assert "suite-report.js" in running
    plane.work()
    text = get(viewer, url)
    assert "Do not rely on this suite yet." in text
    assert "1 of 3 held-out prompts nearly copy a training prompt" in text
    assert "not measured: no policy was evaluated on this suite" in text
    assert "Network of the agent" in text
    assert "suite-report.js" not in text
    assert "Do not rely on this suite yet." in get(viewer, suite_url)


def test_a_count_opens_its_tasks_and_closes_held_out_ones(plane: Plane, engineer, approver):
    store_attempts(plane.suite, "h1", "1", "2", "4", "5")
    plane.compute()
    url = f"/suites/{plane.suite.pk}/report/"
    assert f'href="/tasks/{plane.suite.tasks.get(key="h2").pk}/"' in get(engineer, f"{url}?finding=leaks")
    closed = get(engineer, f"{url}?finding=never_passed")
    assert "1 row closed to you" in closed
    assert ">h1<" not in closed
    assert ">h1<" in get(approver, f"{url}?finding=never_passed")
    assert "secret" not in closed
    get(engineer, f"{url}?finding=nonsense", 404)
    get(engineer, f"{url}?finding=leaks&offset=x")


def test_strangers_do_not_see_it(plane: Plane, stranger):
    plane.compute(probe=False)
    get(stranger, f"/suites/{plane.suite.pk}/report/", 404)


def test_what_came_in_since_is_said(plane: Plane, engineer):
    plane.compute(probe=False)
    url = f"/suites/{plane.suite.pk}/report/"
    assert "nothing has changed since" in get(engineer, url)
    store_attempts(plane.suite, "t1", "3")
    assert "Tasks or episodes have changed since" in get(engineer, url)


def test_a_failed_report_leaves_the_last_good_one(plane: Plane, engineer):
    plane.compute(probe=False)
    with committed():
        Task.objects.filter(key="t1").update(bundle="objects/00/lost")
    plane.compute(threshold=0.9)
    text = get(engineer, f"/suites/{plane.suite.pk}/report/")
    assert "The newest report could not be computed" in text
    assert "What was looked for" in text
    assert SuiteReport.objects.count() == 2


def test_the_contract_on_a_task_page(plane: Plane, engineer, approver):
    contract = EnvironmentContract(files={"<b>secret.txt": "x"})
    for key in ("t1", "h1"):
        task = plane.suite.tasks.get(key=key)
        bundle = msgspec.json.decode(get_store().get(task.bundle), type=TaskBundle)
        stored = get_store().put(msgspec.json.encode(msgspec.structs.replace(bundle, contract=contract)))
        Task.objects.filter(pk=task.pk).update(bundle=stored)
    urls = {task.key: f"/tasks/{task.pk}/" for task in plane.suite.tasks.all()}
    shown = get(engineer, urls["t1"])
    assert "denied" in shown and "up to a limit" in shown and "granted" in shown
    assert "&lt;b&gt;secret.txt" in shown and "<b>secret.txt" not in shown
    closed = get(engineer, urls["h1"])
    assert "secret.txt" not in closed and "closed: held-out" in closed and "512 MiB" in closed
    assert "&lt;b&gt;secret.txt" in get(approver, urls["h1"])
