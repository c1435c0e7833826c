"""A real worker process on a real broker: jobs go in, reports come out, no database address anywhere."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from celery import Celery

from apps.runs import messaging
from gpu_workers import jobs
from gpu_workers.celery import make_app
from gpu_workers.contracts import queues
from gpu_workers.contracts.enums import Purpose, VerifierKind
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import (
    FleetJob,
    GroupSignal,
    PolicyRef,
    Report,
    RolloutJob,
    Sampling,
    TrainJob,
    VerifyItem,
    VerifyJob,
)
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from ratchet.services.home import broker_url

ROOT = Path(jobs.__file__).resolve().parents[1]
QUEUES = ",".join((queues.ROLLOUT, queues.VERIFY, queues.TRAIN, queues.FLEET))


@pytest.fixture(scope="module")
def broker(redis_url: str) -> str:
    return broker_url(redis_url)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker-home")


@pytest.fixture(scope="module")
def app(broker: str, home: Path) -> Iterator[Celery]:
    """The sending side, and a worker process beside it."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "RATCHET_HOME": str(home),
        "CELERY_BROKER_URL": broker,
        "ROLLOUT_ENGINE_URLS": "http://127.0.0.1:9",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "celery", "-A", "gpu_workers", "worker", "-P", "threads", "-c", "2", "-Q", QUEUES]
    with (home / "worker.log").open("wb") as log:
        process = subprocess.Popen([*command, "--without-gossip"], cwd=home, env=environment, stdout=log, stderr=log)
    try:
        yield make_app(broker)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def next_report(app: Celery, home: Path) -> Report:
    return msgspec.convert(next_message(app, home, queues.INGEST), Report)


def next_message(app: Celery, home: Path, name: str, seconds: float = 90.0) -> Any:
    limit = time.monotonic() + seconds
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(name)
        try:
            while time.monotonic() < limit:
                try:
                    message = queue.get(timeout=0.5)
                except queue.Empty:
                    continue
                message.ack()
                return message.payload[0][0]
        finally:
            queue.close()
    raise AssertionError(f"no report; the worker says: {(home / 'worker.log').read_text()[-2000:]}")


def send(app: Celery, job: str, queue: str, body: msgspec.Struct) -> None:
    payload: dict[str, Any] = jsonable(body)
    app.send_task(job, args=[payload], queue=queue)


def test_every_kind_of_job_is_answered(app: Celery, home: Path) -> None:
    store = ObjectStore(f"file://{home / 'objects'}")
    task = TaskBundle(
        key="t",
        prompt=[Message(role="user", content="2+2?")],
        verifier=VerifierSpec(kind=VerifierKind.NUMBER, expected=4),
        reference=[Message(role="assistant", content="4")],
    )
    key = store.put(msgspec.json.encode(task))

    send(
        app,
        queues.JOB_VERIFY,
        queues.VERIFY,
        VerifyJob(job_id="v", suite_id="s", items=[VerifyItem(task_id="t", task=key)]),
    )
    verified = next_report(app, home)
    assert (verified.kind, [check["ok"] for check in verified.body["checks"]]) == ("verified", [True])

    rollout = RolloutJob(
        group_id="g",
        attempt=1,
        purpose=Purpose.TRAIN,
        task=key,
        group_size=2,
        policy=PolicyRef(),
        sampling=Sampling(),
        deadline=time.time() + 60,
    )
    send(app, queues.JOB_ROLLOUT, queues.ROLLOUT, rollout)
    group = next_report(app, home)
    assert (group.kind, group.body["boundary"]) == ("group", "engine")

    send(app, queues.JOB_FLEET, queues.FLEET, FleetJob(job_id="f", base_model="m", retire=["a"]))
    installed = next_report(app, home)
    assert (installed.kind, installed.body["ok"], installed.body["job_id"]) == ("installed", False, "f")

    send(app, queues.JOB_TRAIN, queues.TRAIN, TrainJob(run_id="r", attempt=1, token=5, spec={}, base_model="m"))
    beat = next_message(app, home, queues.HEARTBEAT)  # at once, before the trainer's process can say anything
    assert (beat["run_id"], beat["attempt"], beat["token"], beat["state"]) == ("r", 1, 5, "loading")
    failed = next_report(app, home)
    assert (failed.kind, failed.run_id, failed.token) == ("trainer_failed", "r", 5)
    assert (home / "logs" / "trainer-r.1.log").exists()


def test_a_group_given_up_by_broadcast_is_dropped_when_its_message_comes(
    app: Celery, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TaskBundle(
        key="t", prompt=[Message(role="user", content="2+2?")], verifier=VerifierSpec(kind=VerifierKind.NUMBER)
    )
    key = ObjectStore(f"file://{home / 'objects'}").put(msgspec.json.encode(task))
    monkeypatch.setattr(messaging, "app", app)  # the control plane's own, on the worker's broker
    for _ in range(50):  # until the worker listens to remote control
        if app.control.ping(timeout=0.5):
            break
    messaging.signal_groups(GroupSignal(group_ids=["given-up"], reason="left behind"))
    assert app.control.broadcast(
        queues.SIGNAL_GROUPS, arguments={"signal": {"group_ids": []}}, reply=True, timeout=60, limit=1
    )
    for group_id in ("given-up", "wanted"):
        job = RolloutJob(
            group_id=group_id, attempt=1, purpose=Purpose.TRAIN, task=key, group_size=2,
            policy=PolicyRef(), sampling=Sampling(), deadline=time.time() + 30,
        )  # fmt: skip
        send(app, queues.JOB_ROLLOUT, queues.ROLLOUT, job)
    assert next_report(app, home).body["group_id"] == "wanted"
