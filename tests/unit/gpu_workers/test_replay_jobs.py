"""The Celery entry points of replays, called as functions: whatever happens, one report goes out."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_workers import jobs, replay_jobs
from gpu_workers.celery import app
from gpu_workers.contracts import queues
from gpu_workers.contracts.enums import VerifierKind
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import Report
from gpu_workers.contracts.replays import (
    EpisodeReproduced,
    ProbeItem,
    ProbeJob,
    ReproduceJob,
    StoredEpisode,
    TasksProbed,
)
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from gpu_workers.settings import WorkerSettings, load_settings

TASK = TaskBundle(
    key="t",
    prompt=[Message(role="user", content="2+2?")],
    verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=4),
)


class Reports:
    """What went out."""

    def __init__(self) -> None:
        self.sent: list[Report] = []

    def send(self, report: Report) -> None:
        self.sent.append(report)

    def only(self, kind: str, body: type[Any]) -> Any:
        (report,) = self.sent
        assert report.kind == kind
        return msgspec.convert(report.body, body)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    made = load_settings({"RATCHET_HOME": str(tmp_path)})
    monkeypatch.setattr(jobs, "settings", lambda: made)
    jobs.load_task.cache_clear()
    return made


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    made = Reports()
    monkeypatch.setattr(jobs, "reporter", lambda: made)
    return made


def put(worker: WorkerSettings, task: TaskBundle) -> str:
    return worker.store.put(msgspec.json.encode(task))


def reproduce_job(key: str) -> ReproduceJob:
    return ReproduceJob(job_id="j", task=key, episode=StoredEpisode(episode_id="e", transcript="objects/aa/x", index=0))


def test_a_reproduction_that_cannot_be_played_is_reported_under_one_id(
    worker: WorkerSettings, reports: Reports
) -> None:
    for _ in range(2):
        replay_jobs.reproduce_episode(jsonable(reproduce_job(put(worker, TASK))))
    assert {report.report_id for report in reports.sent} == {"reproduced.j"}
    body = msgspec.convert(reports.sent[0].body, EpisodeReproduced)
    assert (body.job_id, body.verdict) == ("j", "")
    assert "missing" in body.error


def test_a_bug_is_reported_too(worker: WorkerSettings, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(replay_jobs, "reproduce", fail)
    replay_jobs.reproduce_episode(jsonable(reproduce_job("objects/aa/x")))
    assert reports.only("reproduced", EpisodeReproduced).error == "KeyError: 'lost'"

    reports.sent.clear()
    monkeypatch.setattr(replay_jobs, "probe_task", fail)
    items = [ProbeItem(task_id="a", task="x"), ProbeItem(task_id="b", task="y")]
    replay_jobs.probe_tasks(jsonable(ProbeJob(job_id="r.0", report_id="r", items=items)))
    body = reports.only("probed", TasksProbed)
    assert [(probe.task_id, probe.error) for probe in body.probes] == [
        ("a", "KeyError: 'lost'"),
        ("b", "KeyError: 'lost'"),
    ]


def test_tasks_are_probed_one_by_one(worker: WorkerSettings, reports: Reports) -> None:
    items = [ProbeItem(task_id="good", task=put(worker, TASK)), ProbeItem(task_id="lost", task="objects/aa/missing")]
    replay_jobs.probe_tasks(jsonable(ProbeJob(job_id="r.3", report_id="r", items=items, constant="4")))
    body = reports.only("probed", TasksProbed)
    assert (body.job_id, reports.sent[0].report_id) == ("r.3", "probed.r.3")
    good, lost = body.probes
    assert {shortcut.policy: shortcut.verdict for shortcut in good.shortcuts} == {
        "constant": "pass", "copy_prompt": "fail", "empty": "fail", "refusal": "fail",
    }  # fmt: skip
    assert "missing" in lost.error


def test_a_worker_knows_both_jobs() -> None:
    app.loader.import_default_modules()
    assert {queues.JOB_REPRODUCE, queues.JOB_PROBE} <= app.tasks.keys()
