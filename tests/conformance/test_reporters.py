"""What every reporter must do: contracts.seams.Reporter, and heartbeats."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_workers.celery import make_app
from gpu_workers.contracts import queues
from gpu_workers.contracts.groups import EpisodeRecord
from gpu_workers.contracts.messages import GroupReport, Heartbeat, Report
from gpu_workers.reporting import CeleryReporter, JsonlReporter, NullReporter, new_report


@dataclass
class Case:
    """A reporter and a way to read back what it delivered: reports, heartbeats."""

    reporter: Any
    read: Callable[[], tuple[list[Any], list[Any]]]


def celery_case() -> Case:
    app = make_app("memory://")
    with app.connection_for_write() as connection:  # the memory broker is shared by a process's connections
        for queue in (queues.INGEST, queues.HEARTBEAT):
            connection.SimpleQueue(queue).clear()

    def read() -> tuple[list[Any], list[Any]]:
        found = []
        with app.connection_for_read() as connection:
            for name, job in ((queues.INGEST, queues.JOB_INGEST), (queues.HEARTBEAT, queues.JOB_HEARTBEAT)):
                queue = connection.SimpleQueue(name)
                payloads = []
                while queue.qsize():
                    message = queue.get(block=False)
                    assert message.headers["task"] == job
                    assert message.content_type == "application/json"
                    payloads.append(message.payload[0][0])
                    message.ack()
                queue.close()
                found.append(payloads)
        return found[0], found[1]

    return Case(CeleryReporter(app), read)


def jsonl_case(path: Path) -> Case:
    def read() -> tuple[list[Any], list[Any]]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [r for r in rows if r["kind"] != "heartbeat"], [r["body"] for r in rows if r["kind"] == "heartbeat"]

    return Case(JsonlReporter(path), read)


@pytest.fixture(params=["celery", "jsonl"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return celery_case() if request.param == "celery" else jsonl_case(tmp_path / "reports.jsonl")


def group_report() -> Report:
    body = GroupReport(group_id="g", attempt=2, episodes=[EpisodeRecord(index=0, seed=1, stop_reason="answered")])
    return new_report("group", body, report_id="group.g.2", run_id="r", run_attempt=3, token=7)


def test_a_report_arrives_as_it_was_sent(case: Case) -> None:
    sent = group_report()
    case.reporter.send(sent)
    (payload,), heartbeats = case.read()
    received = msgspec.convert(payload, Report)
    assert received == sent
    assert msgspec.convert(received.body, GroupReport).episodes[0].seed == 1
    assert heartbeats == []


def test_sending_again_keeps_the_id(case: Case) -> None:
    sent = group_report()
    case.reporter.send(sent)
    case.reporter.send(sent)
    reports, _ = case.read()
    assert [report["report_id"] for report in reports] == ["group.g.2"] * 2


def test_reports_without_a_given_id_are_different_facts(case: Case) -> None:
    for _ in range(2):
        case.reporter.send(new_report("group", GroupReport(group_id="g", attempt=1)))
    reports, _ = case.read()
    assert len({report["report_id"] for report in reports}) == 2


def test_heartbeats_go_their_own_way(case: Case) -> None:
    beat = Heartbeat(run_id="r", attempt=1, token=7, state="training", step=3)
    case.reporter.heartbeat(beat)
    reports, (payload,) = case.read()
    assert reports == []
    assert msgspec.convert(payload, Heartbeat) == beat


def test_null_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reporter, report = NullReporter(), group_report()
    holders = sys.getrefcount(report)
    reporter.send(report)
    reporter.heartbeat(Heartbeat(run_id="r", attempt=1, token=7))
    assert list(tmp_path.iterdir()) == [] and vars(reporter) == {}
    assert sys.getrefcount(report) == holders
