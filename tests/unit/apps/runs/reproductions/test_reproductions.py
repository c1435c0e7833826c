"""Playing stored episodes again, through the API, the real sandbox and the real verifier."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from apps.accounts.models import Role
from apps.audit.models import AuditEvent
from apps.runs.models import Reproduction
from apps.runs.reproductions.models import ReproductionOutcome
from apps.runs.reproductions.outcomes import Judged, judge_outcome
from apps.runs.services.reports import ingest_report
from apps.tasks.models import SplitName, Task, TaskState
from apps.tasks.services import release_task
from gpu_workers import replay_jobs
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import Report
from gpu_workers.contracts.replays import EpisodeReproduced
from gpu_workers.contracts.tasks import VerifierSpec
from tests.support.replays import RANDOM_VERIFIER, make_task
from tests.support.worlds import make_world


def test_a_deterministic_episode_reproduces(plane, client_of):
    client = client_of(plane.world.engineer)
    episode = plane.store_episode(make_task(), "count()", "count()", "Two.")
    answer = plane.ask(client, episode)
    assert (answer.status_code, answer.json()["state"]) == (202, "requested")
    url = answer.headers["Location"]
    assert client.get(url).status_code == 202
    plane.work()
    shown = client.get(url)
    body = shown.json()
    assert (shown.status_code, body["state"], body["outcome"]) == (200, "finished", "same")
    assert (body["stored_verdict"], body["verdict"], body["reward"]) == ("pass", "pass", 1.0)
    assert [(call["stored"], call["reproduced"], call["same"]) for call in body["calls"]] == [
        ("1", "1", True), ("2", "2", True),
    ]  # fmt: skip
    assert body["digest"] == body["stored_digest"] != ""
    assert "bubblewrap" in body["isolation"]
    assert body["status_message"] == "The verdict is the same, pass with reward 1; all 2 tool outputs agree."
    assert episode.group.task.state == TaskState.READY
    listed = client.get(f"/api/v1/episodes/{episode.pk}/reproductions/").json()["results"]
    assert [row["id"] for row in listed] == [body["id"]]


def test_a_random_verifier_gets_its_task_marked_flaky_until_a_person_releases_it(plane, client_of):
    client = client_of(plane.world.engineer)
    bundle = make_task(verifier=VerifierSpec(kind="program", program=RANDOM_VERIFIER))
    episode = plane.store_episode(bundle, "count()", "Two.")
    for _ in range(24):
        plane.ask(client, episode)
        plane.work()
        if Reproduction.objects.filter(outcome="different").exists():
            break
    row = Reproduction.objects.get(outcome="different")
    task = Task.objects.get(pk=episode.group.task_id)
    assert (task.state, task.quarantine_code) == (TaskState.QUARANTINED, "VERIFIER_FLAKY")
    assert task.quarantine_message == row.status_message
    assert row.marked_flaky
    assert row.verdict != episode.verdict
    event = AuditEvent.objects.get(tag="system:task:flaky")
    assert (event.after["task"], event.after["episode"]) == (task.key, str(episode.pk))
    release_task(task=task, by=plane.world.engineer, reason="the verifier was repaired")
    task.refresh_from_db()
    assert task.state == TaskState.READY


def test_a_random_tool_is_named_but_the_same_verdict_marks_nothing(plane, client_of):
    client = client_of(plane.world.engineer)
    episode = plane.store_episode(make_task(), "count()", "roll()", "count()", "Two.")
    plane.ask(client, episode)
    plane.work()
    row = Reproduction.objects.get()
    assert (row.outcome, row.num_calls_different, row.marked_flaky) == ("same", 1, False)
    assert row.digest != row.stored_digest
    assert "1 of 3 tool outputs differs" in row.status_message


def test_asking_twice_plays_once_and_a_lost_message_is_sent_again(plane, client_of):
    client = client_of(plane.world.engineer)
    episode = plane.store_episode(make_task(), "count()", "One.")
    first = plane.ask(client, episode)
    assert plane.ask(client, episode).headers["Location"] == first.headers["Location"]
    assert len(plane.sent) == 1
    Reproduction.objects.update(sent_at=timezone.now() - timedelta(minutes=20))
    plane.ask(client, episode)
    assert [job.job_id for job in plane.sent] == [first.json()["id"]] * 2
    row = Reproduction.objects.get()
    replay_jobs.reproduce_episode(jsonable(plane.sent.popleft()))
    assert ingest_report(jsonable(plane.reports[-1])) == "stored"
    replay_jobs.reproduce_episode(jsonable(plane.sent.popleft()))
    assert ingest_report(jsonable(plane.reports[-1])) == "duplicate"
    assert "finished already" in plane.answer(row, verdict="fail")
    assert AuditEvent.objects.filter(tag="user:episode:reproduce").count() == 1


def test_what_could_not_be_played_marks_nothing(plane, client_of):
    client = client_of(plane.world.engineer)
    episode = plane.store_episode(make_task(), "count()", "count()", "Two.")
    plane.ask(client, episode)
    plane.answer(Reproduction.objects.get(), error="SANDBOX_UNAVAILABLE: no user namespaces")
    row = Reproduction.objects.get()
    assert (row.state, row.outcome, row.marked_flaky) == ("failed", "", False)
    assert "no user namespaces" in row.status_message
    assert Task.objects.get(pk=episode.group.task_id).state == TaskState.READY
    assert plane.ask(client, episode).json()["id"] != str(row.pk), "a failed one may be asked for anew"


def test_who_may_have_an_episode_played_again(plane, client_of):
    train = plane.store_episode(make_task(), "count()", "One.")
    heldout = plane.store_episode(make_task(), "count()", "One.", split=SplitName.HELDOUT)
    users = plane.world.users
    for role, episode, status in (
        (Role.VIEWER, train, 403),
        (Role.REVIEWER, train, 404),
        (Role.ENGINEER, heldout, 403),
        (Role.ENGINEER, train, 202),
        (Role.APPROVER, heldout, 202),
    ):
        assert plane.ask(client_of(users[role]), episode).status_code == status, role
    plane.work()
    url = f"/api/v1/episodes/{heldout.pk}/reproductions/"
    assert client_of(users[Role.ENGINEER]).get(url).status_code == 403
    assert client_of(users[Role.ENGINEER]).get(f"{url}{heldout.reproductions.get().pk}/").status_code == 403
    assert client_of(users[Role.APPROVER]).get(url).status_code == 200
    assert AuditEvent.objects.filter(tag="user:heldout:read").exists()
    stranger = make_world(slug="elsewhere").engineer
    assert plane.ask(client_of(stranger), train).status_code == 404


def test_episodes_that_have_no_end_are_refused(plane, client_of):
    client = client_of(plane.world.engineer)
    broken = plane.store_episode(
        make_task(), "count()", "One.", stop_reason="error", verdict="error", reward=None, success=False
    )
    answer = plane.ask(client, broken)
    assert (answer.status_code, answer.json()["code"]) == (409, "episode_incomplete")
    broken.group.transcript = ""
    broken.group.save()
    assert plane.ask(client, broken).json()["code"] == "no_transcript"


def test_reports_of_nothing_known_are_refused(db):
    for job_id in ("x", str(uuid4())):
        body = jsonable(EpisodeReproduced(job_id=job_id))
        report = Report(report_id=str(uuid4()), kind="reproduced", body=body)
        assert "unknown reproduction" in ingest_report(jsonable(report))


def test_another_verdict_of_a_changed_verifier_leaves_the_task_alone(plane, client_of, monkeypatch):
    """An upgrade may judge better; that is no coin that the task tosses."""
    episode = plane.store_episode(make_task(), "count()", "Two.", verdict="pass", reward=1.0, success=True)
    monkeypatch.setattr("gpu_workers.verifiers.results.judging_code", lambda: b"of another release")
    plane.ask(client_of(plane.world.engineer), episode)
    plane.work()
    row = Reproduction.objects.get()
    assert (row.outcome, row.marked_flaky) == ("verifier_changed", False)
    assert "the verifier has changed since" in row.status_message
    assert Task.objects.get(pk=episode.group.task_id).state == TaskState.READY


@pytest.mark.parametrize(
    ("stored", "again", "left_path", "outcome"),
    [
        (("pass", 1.0), ("pass", 1.0), False, ReproductionOutcome.SAME),
        (("fail", 0.5), ("fail", 0.5), True, ReproductionOutcome.LEFT_PATH),
        (("fail", 0.5), ("fail", 0.4), False, ReproductionOutcome.DIFFERENT),
        (("pass", 1.0), ("fail", 0.0), True, ReproductionOutcome.DIFFERENT),
        (("pass", 1.0), ("error", None), False, ReproductionOutcome.DIFFERENT),
        (("error", None), ("pass", 1.0), False, ReproductionOutcome.NOTHING_TO_COMPARE),
        (("error", None), ("error", None), False, ReproductionOutcome.NOTHING_TO_COMPARE),
    ],
)
def test_what_a_reproduction_proves(stored, again, left_path, outcome):
    assert judge_outcome(Judged(*stored), Judged(*again), left_path=left_path) == outcome
