"""Reporters: how workers tell the control plane what happened (Celery, a JSONL file, nowhere)."""

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from celery import Celery
from kombu.exceptions import OperationalError

from gpu_workers.contracts import queues
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import Heartbeat, Report
from gpu_workers.contracts.points import Point, PointBatch, body_of, pack_points

# A report is the only trace of finished work: keep trying for about ten minutes while the broker is away.
RETRY_POLICY = {"max_retries": 60, "interval_start": 0.2, "interval_step": 0.5, "interval_max": 10.0}
HEARTBEAT_RETRY = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.2}
HEARTBEAT_LIFETIME_SECONDS = 30
_AWAY_SECONDS = 1.0  # pause before the broker is tried again

logger = logging.getLogger(__name__)


def worker_name() -> str:
    """Host and process, as shown beside what a worker reports."""
    return f"{socket.gethostname()}:{os.getpid()}"


def new_report(
    kind: str,
    body: msgspec.Struct,
    *,
    report_id: str = "",
    run_id: str = "",
    run_attempt: int = 0,
    token: int = 0,
) -> Report:
    """Put a body into its envelope. Give `report_id` where the same fact may be reported twice."""
    return Report(
        report_id=report_id or uuid.uuid4().hex,
        kind=kind,
        body=body_of(body),
        worker=worker_name(),
        sent_at=time.time(),
        run_id=run_id,
        run_attempt=run_attempt,
        token=token,
    )


class CeleryReporter:
    """Sends reports to queue `ingest` and heartbeats to their own queue. Safe to share between threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, report: Report) -> None:
        self._send(queues.JOB_INGEST, queues.INGEST, jsonable(report), retry_policy=RETRY_POLICY)

    def points(self, batch: PointBatch) -> None:
        """A batch that is sent again is stored once, so it is tried as long as a report."""
        payload = msgspec.to_builtins(batch)  # columns are text already: no second pass through JSON
        self._send(queues.JOB_INGEST_POINTS, queues.INGEST, payload, retry_policy=RETRY_POLICY)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Best effort: a late heartbeat is worth nothing, so it is neither retried long nor kept long."""
        self._send(
            queues.JOB_HEARTBEAT,
            queues.HEARTBEAT,
            jsonable(heartbeat),
            retry_policy=HEARTBEAT_RETRY,
            expires=HEARTBEAT_LIFETIME_SECONDS,
        )

    def _send(self, job: str, queue: str, payload: dict[str, Any], **options: Any) -> None:
        self._app.send_task(job, args=[payload], queue=queue, retry=True, ignore_result=True, **options)


class JsonlReporter:
    """Appends one JSON object a line; for work without a control plane."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        self._append(jsonable(report))

    def points(self, batch: PointBatch) -> None:
        self._append({"kind": "points", "body": jsonable(batch)})

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self._append({"kind": "heartbeat", "body": jsonable(heartbeat)})

    def _append(self, payload: dict[str, Any]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(payload) + "\n")


class NullReporter:
    """Keeps nothing."""

    def send(self, report: Report) -> None:
        return None

    def points(self, batch: PointBatch) -> None:
        return None

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        return None


class PointSink(Protocol):
    """Where batches of points go: any reporter."""

    def points(self, batch: PointBatch) -> None: ...


class PointStream:
    """Metric points of one source, e.g. a trainer, in numbered batches: each is stored once, however often it is sent.

    `log` never waits: a thread sends what has gathered every `period_seconds`, or sooner when `most` points wait. Call
    `close` at the end; it sends the rest. Safe to share between threads. A source that starts again within the same
    run attempt must have a new name, since its numbers start again.
    """

    def __init__(
        self,
        sink: PointSink,
        *,
        run_id: str,
        source: str,
        attempt: int = 0,
        token: int = 0,
        period_seconds: float = 0.2,
        most: int = 5000,
    ) -> None:
        self._sink = sink
        self._identity = {"run_id": run_id, "source": source, "attempt": attempt, "token": token}
        self._period, self._most = period_seconds, most
        self._points: list[Point] = []
        self._seq = 0
        self._lock, self._full, self._closing = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"points-{source}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float], *, at: float | None = None) -> None:
        """One point per value, NaN and infinities too. `at`: unix seconds, now where it is not given."""
        now = time.time() if at is None else at
        with self._lock:
            self._points += [(name, step, float(value), now) for name, value in values.items()]
            if len(self._points) >= self._most:
                self._full.set()

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._closing = True
        self._full.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            self._full.wait(self._period)
            self._full.clear()
            self._send()
        self._send()

    def _send(self) -> None:
        with self._lock:
            points, self._points = self._points, []
        for start in range(0, len(points), self._most):
            columns: Any = pack_points(points[start : start + self._most])
            identity: Any = self._identity
            self._deliver(PointBatch(seq=self._seq, sent_at=time.time(), **identity, **columns))
            self._seq += 1

    def _deliver(self, batch: PointBatch) -> None:
        """The broker may be away longer than the sink tries: the batch waits, and its number with it."""
        while True:
            try:
                self._sink.points(batch)
                return
            except (OSError, OperationalError):
                logger.warning("points of %s wait: the broker does not answer", batch.source)
                if self._closing:
                    return
                time.sleep(_AWAY_SECONDS)
