"""A report from the request to its pages' data: stored once, probed by real verifiers, closed where it must be."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from apps.audit.models import AuditEvent
from apps.evaluations.services import policy_arm, start_evaluation
from apps.runs.services.reports import ingest_report
from apps.tasks import jobs as task_jobs
from apps.tasks.flaky import mark_flaky
from apps.tasks.models import Task, TaskState
from apps.tasks.reports.models import ProbeChunk, SuiteReport
from apps.tasks.reports.selectors import is_outdated, is_stale, load_body, newest_report
from apps.tasks.services import apply_checks, import_suite, release_task
from gpu_workers.contracts.enums import Split
from gpu_workers.contracts.environment import EnvironmentContract
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import Report, Sampling, TaskCheck
from gpu_workers.contracts.replays import ProbeJob, TaskProbe, TasksProbed
from ratchet.problems import Problem
from tests.support.evaluations import Workers, committed, make_policy
from tests.support.suite_reports import store_attempts
from tests.unit.apps.tasks.conftest import make_definition, make_task


def keys(report: SuiteReport, name: str) -> set[str]:
    found = load_body(report).finding(name)
    assert found is not None
    return set(Task.objects.filter(pk__in=[row.task for row in found.rows]).values_list("key", flat=True))


def test_a_report_finds_what_was_planted(plane):
    report = plane.compute()
    assert (report.state, report.verdict, report.num_probed) == ("ready", "problem", 6)
    assert keys(report, "leaks") == {"h2"}
    assert keys(report, "shortcut_refusal") == keys(report, "shortcut_copy_prompt") == {"t3", "h3"}
    assert keys(report, "shortcut_constant") == {"t1", "t3", "h1", "h3"}, "3 is the most frequent answer of train"
    assert keys(report, "shortcut_empty") <= {"t3", "h3"}
    body = load_body(report)
    assert body.finding("unprobed").count == 0
    assert body.finding("level").severity == "unmeasured"
    assert body.finding("never_passed").severity == "unmeasured"
    assert body.headline == report.status_message
    assert not ProbeChunk.objects.exists()
    assert AuditEvent.objects.filter(tag="system:suite:report").count() == 1


def test_the_same_evidence_gives_the_same_bytes_and_is_computed_once(plane):
    first = plane.compute()
    again = plane.request()
    assert (again.pk, len(plane.computes)) == (first.pk, 0)
    SuiteReport.objects.all().delete()
    second = plane.compute()
    assert (second.body, second.input_hash) == (first.body, first.input_hash)
    other = plane.request(threshold=0.9)
    assert other.pk != second.pk
    assert other.input_hash != second.input_hash


def test_attempts_change_what_a_report_is_computed_from(plane):
    first = plane.compute()
    store_attempts(plane.suite, "t1", "3", "4", "3", "5")
    store_attempts(plane.suite, "h1", "1", "2", "4", "5")
    second = plane.compute()
    assert second.pk != first.pk
    never = load_body(second).finding("never_passed")
    assert (keys(second, "never_passed"), never.total) == ({"h1"}, 2)
    unstable = load_body(second).finding("unstable")
    assert (unstable.count, "(3 stored episodes)" in unstable.text) == (0, True)


def test_a_stored_verdict_that_the_verifier_does_not_repeat_is_found(plane):
    store_attempts(plane.suite, "t2", "3")  # stored as right, but t2 asks for 65
    report = plane.compute()
    assert keys(report, "unstable") == {"t2"}
    assert load_body(report).finding("unstable").rows[0].note == "stored pass 1; again fail 0, fail 0"


def test_difficulty_is_the_pass_rate_of_the_prompt_only_policy(plane, monkeypatch):
    workers = Workers(monkeypatch)
    policies = [make_policy(plane.suite.project, "rl"), make_policy(plane.suite.project, "prompted", adapter=False)]
    for policy in policies:
        with committed():
            start_evaluation(
                project=plane.suite.project, suite=plane.suite, split="heldout", purpose="baseline", samples=2, by=None,
                arms=[policy_arm(policy)], sampling=Sampling(temperature=1.0),
            )  # fmt: skip
        workers.work(lambda task, adapter, index: {"success": bool(adapter) or (task.key == "h1" and index == 0)})
    report = plane.compute(probe=False)
    body = load_body(report)
    measured = body.difficulty["heldout"]
    assert (body.baseline, measured.num_measured, measured.num_episodes, measured.num_passed) == ("prompted", 3, 6, 1)
    assert measured.bins == [2, 0, 1, 0, 0, 0]
    assert body.finding("shortcut_empty").severity == "unmeasured"


def test_progress_over_the_api_and_the_rows_behind_a_count(plane, engineer, approver, client_of):
    client = client_of(engineer)
    url = f"/api/v1/suites/{plane.suite.pk}/report/"
    assert (client.get(url).status_code, client.get(url).json()["code"]) == (404, "no_report")
    with committed():
        asked = client.post(url, {})
    assert (asked.status_code, asked.headers["Location"]) == (202, url)
    with committed():
        assert client.post(url, {}).json()["id"] == asked.json()["id"]
    assert len(plane.computes) == 1
    with committed():
        task_jobs.compute_report(str(plane.computes.popleft()))
    running = client.get(url)
    assert (running.status_code, running.json()["progress"]["total"], running.json()["report"]) == (202, 6, None)
    plane.work()
    ready = client.get(url).json()
    assert (ready["state"], ready["verdict"], ready["outdated"]) == ("ready", "problem", False)
    (leaks,) = [finding for finding in ready["report"]["findings"] if finding["name"] == "leaks"]
    assert (leaks["count"], leaks["num_rows"]) == (1, 1)
    rows = client.get(leaks["url"]).json()
    assert [(row["task"]["key"], row["other"]["key"], row["note"]) for row in rows["results"]] == [("h2", "t2", "")]
    assert client.get(f"{url}nonsense/").status_code == 404
    assert client.get(f"{url}leaks/?limit=0").status_code == 400
    with committed():
        assert client.post(url, {"threshold": 5}).json()["errors"][0]["path"] == "threshold"
        assert client.post(url, {"speed": 5}).json()["errors"][0]["path"] == "speed"
        assert client.post(url, {}).status_code == 200


def test_nothing_of_held_out_tasks_reaches_who_may_not_read_them(plane, engineer, approver, client_of):
    store_attempts(plane.suite, "h1", "1", "2", "4", "5")
    store_attempts(plane.suite, "t1", "1", "2", "4", "5")
    plane.compute()
    url = f"/api/v1/suites/{plane.suite.pk}/report/"
    client = client_of(engineer)
    texts = client.get(url).content.decode()
    for name, shown, closed in (("shortcut_refusal", {"t3"}, 1), ("never_passed", {"t1"}, 1)):
        body = client.get(f"{url}{name}/").json()
        assert ({row["task"]["key"] for row in body["results"]}, body["num_closed"]) == (shown, closed), name
        texts += client.get(f"{url}{name}/").content.decode()
    texts += client.get(f"{url}leaks/").content.decode()
    assert "secret" not in texts
    assert "lemons" not in texts
    assert not AuditEvent.objects.filter(tag="user:heldout:read").exists()

    reader = client_of(approver)
    assert {row["task"]["key"] for row in reader.get(f"{url}never_passed/").json()["results"]} == {"t1", "h1"}
    event = AuditEvent.objects.get(tag="user:heldout:read")
    assert event.after["tasks"] == ["h1"]


def test_who_may_have_it_computed(plane, viewer, stranger, client_of):
    url = f"/api/v1/suites/{plane.suite.pk}/report/"
    assert client_of(viewer).post(url, {}).status_code == 403
    assert client_of(stranger).post(url, {}).status_code == 404
    assert client_of(stranger).get(url).status_code == 404
    plane.compute(probe=False)
    assert client_of(viewer).get(url).status_code == 200
    assert client_of(stranger).get(f"{url}leaks/").status_code == 404


def test_lost_parts_are_sent_again_and_stored_once(plane):
    report = plane.request()
    plane.computes.clear()
    later = timezone.now() - timedelta(hours=1)

    def resend() -> None:
        SuiteReport.objects.update(active_at=later)
        with committed():
            task_jobs.resend_reports()

    resend()
    assert list(plane.computes) == [report.pk]
    with committed():
        task_jobs.compute_report(str(plane.computes.popleft()))
    job: ProbeJob = plane.probes.popleft()
    resend()
    assert plane.probes.popleft() == job
    probes = [TaskProbe(task_id=item.task_id, error="a\0b") for item in job.items]
    body = TasksProbed(job_id=job.job_id, report_id=job.report_id, probes=probes)

    def answer(**changes: Any) -> str:
        values = jsonable(body) | changes
        with committed():
            return ingest_report(jsonable(Report(report_id=str(uuid4()), kind="probed", body=values)))

    assert "unknown report" in answer(report_id=str(uuid4()))
    assert "unknown part" in answer(job_id=f"{report.pk}.99")
    assert answer() == "stored"
    assert "stored already" in answer()
    plane.finishes.clear()
    resend()
    assert len(plane.finishes) == 1
    plane.work()
    report.refresh_from_db()
    assert report.state == "ready"
    assert load_body(report).finding("unprobed").count == 6
    resend()
    assert not plane.computes


def test_a_suite_whose_content_is_lost_says_so(plane):
    Task.objects.filter(key="t1").update(bundle="objects/00/lost")
    report = plane.compute()
    assert (report.state, "cannot be read" in report.status_message) == ("failed", True)


@pytest.mark.parametrize("step", ["build_draft", "finish_body"])
def test_a_bug_ends_the_report_and_another_can_be_asked_for(plane, monkeypatch, step):
    def break_down(*_: Any) -> None:
        raise KeyError("lost")

    with monkeypatch.context() as broken:
        broken.setattr(f"apps.tasks.reports.services.{step}", break_down)
        report = plane.compute(probe=False)
    assert (report.state, report.status_message) == ("failed", "The report could not be computed: KeyError: 'lost'")
    assert plane.compute(probe=False).state == "ready"


def test_tasks_in_quarantine_are_not_probed(plane):
    Task.objects.filter(key="h3").update(state=TaskState.QUARANTINED)
    report = plane.compute()
    assert report.num_to_probe == 5
    assert keys(report, "shortcut_refusal") == {"t3"}


def test_the_contract_of_a_task_names_no_held_out_file(project, sent, engineer, approver, client_of):
    files = EnvironmentContract(files={"secret-plan.txt": "x"}, environment={"SECRET_NAME": "1"})
    tasks = [make_task("t", "a?", contract=files), make_task("h", "b?", Split.HELDOUT, contract=files)]
    suite = import_suite(project=project, definition=make_definition(slug="files"), tasks=tasks, by=None)
    urls = {task.key: f"/api/v1/tasks/{task.pk}/contract/" for task in suite.tasks.all()}
    shown = client_of(engineer).get(urls["t"]).json()
    assert shown["content_hidden"] is False
    assert ("Files given", True, "secret-plan.txt") in {(g["topic"], g["granted"], g["text"]) for g in shown["grants"]}
    hidden = client_of(engineer).get(urls["h"])
    assert hidden.json()["content_hidden"] is True
    assert "secret" not in hidden.content.decode().lower()
    assert hidden.json()["contract_hash"] == shown["contract_hash"]
    assert not AuditEvent.objects.filter(tag="user:heldout:read").exists()
    assert "secret-plan" in client_of(approver).get(urls["h"]).content.decode()
    assert AuditEvent.objects.get(tag="user:heldout:read").after["tasks"] == ["h"]
    assert next(g for g in shown["grants"] if g["topic"] == "Network of the agent")["granted"] is False


def test_options_are_checked(plane):
    for options in ({"threshold": 0.1}, {"repeats": 0}, {"min_attempts": "x"}):
        with pytest.raises(Problem) as refused:
            plane.request(**options)
        assert refused.value.errors[0]["path"] == next(iter(options))


def test_a_suite_is_reported_on_when_it_is_ready_and_again_when_a_task_is_released(plane, project, engineer, sent):
    with committed():
        suite = import_suite(
            project=project, definition=make_definition(slug="own"), by=None,
            tasks=[make_task("a", "1 + 2?"), make_task("b", "2 + 1?"), make_task("h", "secret 0 + 3?", Split.HELDOUT)],
        )  # fmt: skip
    assert not suite.reports.exists(), "while its tasks are being checked"
    by_key = dict(suite.tasks.values_list("key", "pk"))
    checks = [TaskCheck(task_id=str(pk), ok=key != "b", reason_code="NO_OUTPUT") for key, pk in by_key.items()]
    with committed():
        apply_checks(suite_id=suite.pk, checks=checks)
    plane.work()
    (first,) = suite.reports.all()
    assert (first.state, first.created_by, first.num_probed, is_stale(first)) == ("ready", None, 2, False)
    assert AuditEvent.objects.filter(tag="user:suite:report").count() == 0
    with committed():
        release_task(task=suite.tasks.get(key="b"), by=engineer, reason="the check was wrong")
    first = SuiteReport.objects.select_related("suite").get(pk=first.pk)
    assert is_stale(first) and is_outdated(first)
    plane.work()
    second = newest_report(suite)
    assert second.pk != first.pk and (second.num_probed, is_stale(second)) == (3, False)


def test_a_task_set_aside_makes_a_report_stale_and_new_episodes_only_outdated(plane, engineer, client_of):
    report = plane.compute(probe=False)
    store_attempts(plane.suite, "t1", "3")
    report = SuiteReport.objects.select_related("suite").get(pk=report.pk)
    assert (is_outdated(report), is_stale(report)) == (True, False)
    mark_flaky(task=plane.suite.tasks.get(key="t2"), message="it does not repeat")
    answer = client_of(engineer).get(f"/api/v1/suites/{plane.suite.pk}/report/").json()
    assert (answer["outdated"], answer["stale"]) == (True, True)


def test_tasks_released_while_a_report_is_computed_are_in_the_next_one(plane):
    plane.request()
    with committed():
        task_jobs.compute_report(str(plane.computes.popleft()))
    mark_flaky(task=plane.suite.tasks.get(key="t2"), message="it does not repeat")
    plane.work()
    newest, before = plane.suite.reports.select_related("suite").all()
    assert (before.state, is_stale(before)) == ("ready", True)
    assert (newest.state, newest.num_probed, is_stale(newest)) == ("ready", 5, False)


def test_a_large_suite_is_probed_on_tasks_drawn_by_the_seed(plane):
    report = plane.compute(max_probed=2, repeats=1)
    body = load_body(report)
    assert (report.num_probed, body.finding("shortcut_empty").total, body.finding("unprobed").total) == (2, 2, 2)
    assert "2 tasks that were drawn" in body.finding("unprobed").text
