"""Workers and a broker that goes away: they consume again by themselves, or end so that another is started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery import Celery

from gpu_workers.celery import make_app
from gpu_workers.contracts.watchdog import EXIT_STATUS, num_waiting
from ratchet.env import ROOT
from ratchet.services.home import broker_url
from ratchet.services.valkey import EmbeddedValkey
from tests.integration.services.machine import wait_for

HEAD = """
import sys, time
from gpu_workers.celery import make_app

app = make_app(sys.argv[1])
app.conf.include = ()

@app.task(name="note")
def note(path, seconds):
    time.sleep(seconds)
    open(path, "a").write("x")

@app.task(name="hang", bind=True)
def hang(self):
    app.hub.call_soon(time.sleep, 3600)  # the event loop, not this job
"""
TAIL = """
from celery.signals import worker_ready
worker_ready.connect(lambda sender, **_: setattr(app, "hub", sender.hub), weak=False)
app.worker_main(["worker", "-P", "threads", "-c", "2", "-Q", "watched,another", "-l", "warning",
                 "--without-gossip", "--without-mingle"])
"""
# Before the product's own watch, which is then not added: it has the patience of production.
WATCHED = """
from gpu_workers.contracts.watchdog import watch_worker
watch_worker(patience_seconds=2.0, check_seconds=0.2)
"""


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    made = EmbeddedValkey(tmp_path / "data", tmp_path / "v.sock", tmp_path / "v.log", dict(os.environ), durable=False)
    made.start()
    yield made
    made.stop()


@contextmanager
def worker(broker: str, script: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", script, broker], env=environment, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def sender(broker: str) -> Celery:
    app = make_app(broker)
    app.amqp.queues.select(["watched"])
    return app


def test_a_worker_that_takes_nothing_ends(valkey: EmbeddedValkey, tmp_path: Path):
    app, notes = sender(broker_url(valkey.url)), tmp_path / "notes"
    with worker(broker_url(valkey.url), WATCHED + HEAD + TAIL, tmp_path / "log") as process:
        for number in range(1, 3):  # it consumes, idles longer than its patience, consumes again
            app.send_task("note", args=[str(notes), 0], queue="watched")
            assert wait_for(lambda: notes.exists() and len(notes.read_text()) == number, 60)  # noqa: B023
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2.5)
        app.send_task("hang", queue="watched")
        assert wait_for(lambda: num_waiting(app) == 0, 60)
        for _ in range(3):
            app.send_task("note", args=[str(notes), 0], queue="watched")
        assert process.wait(60) == EXIT_STATUS
        assert num_waiting(app) > 0, "what it did not take waits for the next worker"


def test_a_broker_killed_while_jobs_run(valkey: EmbeddedValkey, tmp_path: Path):
    """The worker's subscriptions are lost first, a moment before the connection that its jobs come by: of that order
    kombu makes an error that Celery takes for the end."""
    app, log = sender(broker_url(valkey.url)), tmp_path / "worker.log"
    with worker(broker_url(valkey.url), HEAD + TAIL, log) as process:
        for number in range(1, 3):
            app.send_task("note", args=[str(tmp_path / "slow"), 2], queue="watched")
            assert wait_for(lambda: num_waiting(app) == 0, 60)
            process.send_signal(signal.SIGSTOP)
            with redis.Redis(unix_socket_path=str(valkey.socket)) as raw:
                raw.client_kill_filter(_type="pubsub")
            assert valkey.process is not None
            valkey.process.kill()
            valkey.process.wait()
            process.send_signal(signal.SIGCONT)
            assert wait_for(lambda: log.read_text().count("Connection to broker lost") == number, 60)  # noqa: B023
            valkey.start()
            mark = tmp_path / f"after-{number}"
            app.send_task("note", args=[str(mark), 0], queue="watched")
            assert wait_for(mark.exists, 90), log.read_text()
            assert process.poll() is None
