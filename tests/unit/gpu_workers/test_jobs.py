"""The Celery entry points, called as functions: whatever happens, one report goes out."""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_workers import jobs, launching
from gpu_workers.contracts import queues
from gpu_workers.contracts.enums import Boundary, Purpose, VerifierKind
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import (
    FleetJob,
    GroupReport,
    Heartbeat,
    PolicyInstalled,
    PolicyRef,
    Report,
    RolloutJob,
    Sampling,
    TasksVerified,
    TrainerFailed,
    TrainJob,
    VerifyItem,
    VerifyJob,
)
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from gpu_workers.settings import WorkerSettings, load_settings

TASK = TaskBundle(
    key="t",
    prompt=[Message(role="user", content="2+2?")],
    verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=4),
    reference=[Message(role="assistant", content="4")],
    known_bad=["5"],
)


class Reports:
    def __init__(self) -> None:
        self.sent: list[Report] = []
        self.beats: list[Heartbeat] = []

    def send(self, report: Report) -> None:
        self.sent.append(report)

    def only(self, kind: str, body: type[Any]) -> Any:
        (report,) = self.sent
        assert report.kind == kind
        return msgspec.convert(report.body, body)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self.beats.append(heartbeat)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSettings:
    made = load_settings({"RATCHET_HOME": str(tmp_path), "ROLLOUT_ENGINE_URLS": "http://127.0.0.1:9"})
    monkeypatch.setattr(jobs, "settings", lambda: made)
    jobs.load_task.cache_clear()
    return made


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    made = Reports()
    monkeypatch.setattr(jobs, "reporter", lambda: made)
    return made


def rollout(key: str) -> dict[str, Any]:
    job = RolloutJob(
        group_id="g",
        attempt=2,
        purpose=Purpose.TRAIN,
        task=key,
        group_size=2,
        policy=PolicyRef(),
        sampling=Sampling(),
        deadline=time.time() + 20,
        run_id="r",
        run_attempt=3,
    )
    return jsonable(job)


def put(worker: WorkerSettings, task: TaskBundle) -> str:
    return worker.store.put(msgspec.json.encode(task))


def test_an_engine_that_is_down_is_reported(worker: WorkerSettings, reports: Reports) -> None:
    jobs.rollout_group(rollout(put(worker, TASK)))
    body = reports.only("group", GroupReport)
    assert (body.group_id, body.attempt, body.uri, body.boundary) == ("g", 2, "", "engine")
    assert "http://127.0.0.1:9" in body.error
    assert (reports.sent[0].run_id, reports.sent[0].run_attempt) == ("r", 3)


def test_a_repeated_message_has_the_same_report_id(worker: WorkerSettings, reports: Reports) -> None:
    for _ in range(2):
        jobs.rollout_group(rollout("objects/aa/missing"))
    assert len({report.report_id for report in reports.sent}) == 1


def test_a_bug_is_reported_too(worker: WorkerSettings, reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ExceptionGroup("several", [KeyError("lost")])

    monkeypatch.setattr(jobs, "run_group", fail)
    jobs.rollout_group(rollout("objects/aa/missing"))
    body = reports.only("group", GroupReport)
    assert (body.error, body.boundary) == ("KeyError: 'lost'", "infrastructure")


def test_tasks_are_checked_one_by_one(worker: WorkerSettings, reports: Reports) -> None:
    wrong = msgspec.structs.replace(TASK, reference=[Message(role="assistant", content="5")])
    items = [
        VerifyItem(task_id="good", task=put(worker, TASK)),
        VerifyItem(task_id="wrong", task=put(worker, wrong)),
        VerifyItem(task_id="missing", task="objects/aa/missing"),
        VerifyItem(task_id="garbage", task=worker.store.put(b"{}")),
    ]
    jobs.verify_tasks(jsonable(VerifyJob(job_id="j", suite_id="s", items=items)))
    body = reports.only("verified", TasksVerified)
    assert [(check.task_id, check.ok) for check in body.checks] == [
        ("good", True), ("wrong", False), ("missing", False), ("garbage", False),
    ]  # fmt: skip
    assert all(check.message for check in body.checks[1:])


def test_a_failed_install_is_reported(worker: WorkerSettings, reports: Reports) -> None:
    jobs.install_policy(jsonable(FleetJob(job_id="j", base_model="absent", run_id="r", run_attempt=1)))
    body = reports.only("installed", PolicyInstalled)
    assert (body.job_id, body.ok) == ("j", False)
    assert body.message


@pytest.fixture
def train_payload() -> dict[str, Any]:
    return jsonable(TrainJob(run_id="r", attempt=4, token=9, spec={}, base_model="m"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise SystemExit(0)", ""),
        ("raise SystemExit(1)", ""),  # it has reported itself
        ("print('no memory'); raise SystemExit(2)", "exit code 2; last output: no memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
)
def test_a_trainer_that_dies_without_a_word_is_reported(
    worker: WorkerSettings,
    reports: Reports,
    train_payload: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    expected: str,
) -> None:
    monkeypatch.setattr(launching, "trainer_command", lambda job_file: [sys.executable, "-c", source])
    jobs.train_run(train_payload)
    if not expected:
        assert reports.sent == []
        return
    body = reports.only("trainer_failed", TrainerFailed)
    assert expected in body.message and body.retryable
    assert (reports.sent[0].report_id, reports.sent[0].token) == ("r.a4.failed", 9)


def test_a_message_that_cannot_be_read_is_refused(worker: WorkerSettings, reports: Reports) -> None:
    with pytest.raises(msgspec.ValidationError):
        jobs.rollout_group({"group_id": "g"})
    assert reports.sent == []


@pytest.mark.parametrize(("queue", "lines"), [(queues.ROLLOUT, 1), (queues.VERIFY, 1), (queues.FLEET, 0)])
def test_a_worker_of_episodes_says_at_its_start_that_it_cannot_isolate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, queue: str, lines: int
) -> None:
    class Broken:
        async def probe(self) -> str:
            raise WorkerError(Boundary.INFRASTRUCTURE, "SANDBOX_UNAVAILABLE: run `sysctl -w x=1`", retryable=False)

    monkeypatch.setattr(jobs, "sandbox_backend", Broken)
    monkeypatch.setattr(jobs.app.amqp.queues, "_consume_from", {queue: None})
    jobs._probe_sandbox()
    told = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert len(told) == lines and all("SANDBOX_UNAVAILABLE: run `sysctl" in record.message for record in told)
