"""The trainer as a process: kill -9 in mid-run, a dying parent, a bad job file, a reported failure."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from kombu import Connection
from safetensors.torch import load_file

from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import BatchGroup, BatchMessage, StopMessage, TrainJob
from gpu_workers.contracts.queues import batch_queue
from gpu_workers.contracts.runspec import spec_hash
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.attempt import TrainerAttempt, Workplace
from tests.unit.gpu_workers.trainer.synthetic import make_groups, make_spec
from tests.unit.gpu_workers.trainer.test_attempt import Queue, Recorder

PATIENCE_SECONDS = 60.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)


class Attempt:
    """One trainer process with its reports in a file."""

    def __init__(self, home: Path, store: Path, broker_url: str, job: TrainJob) -> None:
        self.file = store.parent / f"job-{job.run_id}-{job.attempt}.json"
        self.reports_path = self.file.with_suffix(".jsonl")
        self.file.write_bytes(msgspec.json.encode(job))
        environment = os.environ | {
            "RATCHET_HOME": str(home),
            "OBJECT_STORE_URL": f"file://{store}",
            "CELERY_BROKER_URL": broker_url,
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("REDIS_URL", None)
        self.command = [
            sys.executable,
            "-m",
            "gpu_workers.trainer",
            str(self.file),
            "--reports",
            str(self.reports_path),
        ]
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(self.command, env=self.environment, stderr=subprocess.DEVNULL)
        return self.process

    def reports(self, kind: str) -> list[dict]:
        if not self.reports_path.exists():
            return []
        lines = self.reports_path.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [report["body"] for report in found if report["kind"] == kind]


@pytest.fixture
def running() -> Iterator[list[Attempt]]:
    attempts: list[Attempt] = []
    yield attempts
    for attempt in attempts:
        if attempt.process is not None and attempt.process.poll() is None:
            attempt.process.kill()
            attempt.process.wait()


def put(broker_url: str, run_id: str, attempt: int, *messages: msgspec.Struct) -> None:
    name = batch_queue(run_id, attempt)
    with Connection(broker_url) as connection, connection.SimpleQueue(name) as queue:
        for message in messages:
            queue.put(jsonable(message), serializer="json")


def test_killed_in_mid_run_a_new_attempt_finishes_with_the_same_weights(
    home: Path, tmp_path: Path, redis_url: str, running: list[Attempt]
):
    broker_url = redis_url.replace("unix://", "redis+socket://")
    store = ObjectStore(f"file://{tmp_path}/objects")
    spec = make_spec()
    batches = Queue(store, 4).messages.values()
    for_attempt = {n: [msgspec.structs.replace(b, run_id="kill", attempt=n) for b in batches] for n in (1, 2)}
    job = TrainJob(run_id="kill", attempt=1, token=1, spec=msgspec.to_builtins(spec), base_model="tiny")

    first = Attempt(home, tmp_path / "objects", broker_url, job)
    running.append(first)
    put(broker_url, "kill", 1, *for_attempt[1][:2])
    first.start()
    wait_for(lambda: len(first.reports("step")) == 2)
    put(broker_url, "kill", 1, *for_attempt[1][2:])
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()

    done = len(first.reports("step"))
    newest = first.reports("step")[-1]["checkpoint"]
    second = Attempt(
        home, tmp_path / "objects", broker_url, msgspec.structs.replace(job, attempt=2, resume_from=newest)
    )
    running.append(second)
    put(broker_url, "kill", 2, *for_attempt[2][done:], StopMessage())
    assert second.start().wait(PATIENCE_SECONDS) == 0
    last = second.reports("step")[-1]
    assert last["batch_ids"] == ["b0", "b1", "b2", "b3"]
    assert second.reports("heartbeat")[0]["token"] == 1
    assert second.reports("trainer_finished")[0]["cpu_seconds"] > 0

    undisturbed = Recorder()
    place = Workplace(store, home / "models", tmp_path / "cache")
    straight = msgspec.structs.replace(job, run_id="r")
    TrainerAttempt(straight, place, undisturbed).run(Queue(store, 4))
    expected, actual = (
        load_file(Path(store.path(body["adapter"])) / "adapter_model.safetensors")
        for body in (undisturbed.of("step")[-1], last)
    )
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    identity = checkpoints.read_manifest(Path(store.path(last["checkpoint"]))).identity
    assert (identity.attempt, identity.spec_hash) == (2, spec_hash(spec))


def test_it_dies_with_its_parent(home: Path, tmp_path: Path, redis_url: str):
    broker_url = redis_url.replace("unix://", "redis+socket://")
    (tmp_path / "objects").mkdir()
    job = TrainJob(run_id="orphan", attempt=1, token=1, spec=msgspec.to_builtins(make_spec()), base_model="tiny")
    attempt = Attempt(home, tmp_path / "objects", broker_url, job)
    script = f"import subprocess; p = subprocess.Popen({attempt.command!r}); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", script], env=attempt.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        child = int(parent.stdout.readline())
        wait_for(lambda: bool(attempt.reports("trainer_started")))
        parent.kill()
    wait_for(lambda: not alive(child))


def alive(process_id: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False


def test_a_failure_is_reported_and_shown_in_the_exit_code(home: Path, tmp_path: Path, redis_url: str):
    (tmp_path / "objects").mkdir()
    job = TrainJob(run_id="bad", attempt=1, token=1, spec=msgspec.to_builtins(make_spec()), base_model="nowhere")
    attempt = Attempt(home, tmp_path / "objects", redis_url.replace("unix://", "redis+socket://"), job)
    assert attempt.start().wait(PATIENCE_SECONDS) == 1
    (failed,) = attempt.reports("trainer_failed")
    assert failed["code"] == "unknown_model"
    assert failed["retryable"] is False
    attempt.file.write_text("{")
    assert attempt.start().wait(PATIENCE_SECONDS) == 2


def test_an_index_ahead_waits_for_the_one_before(home: Path, tmp_path: Path, redis_url: str, running: list[Attempt]):
    broker_url = redis_url.replace("unix://", "redis+socket://")
    store = ObjectStore(f"file://{tmp_path}/objects")
    messages = []
    for index in (1, 0):
        groups = [BatchGroup(group_id=g.group_id, uri=store.put(g.file), age=0) for g in make_groups(index)]
        messages.append(BatchMessage(run_id="order", attempt=1, batch_id=f"b{index}", index=index, groups=groups))
    job = TrainJob(run_id="order", attempt=1, token=1, spec=msgspec.to_builtins(make_spec(steps=2)), base_model="tiny")
    attempt = Attempt(home, tmp_path / "objects", broker_url, job)
    running.append(attempt)
    put(broker_url, "order", 1, *messages, messages[1])
    assert attempt.start().wait(PATIENCE_SECONDS) == 0
    assert [s["batch_id"] for s in attempt.reports("step")] == ["b0", "b1"]
