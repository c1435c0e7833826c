"""Reporters: how workers tell the control plane what happened (Celery, a JSONL file, nowhere)."""

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
from celery import Celery

from gpu_workers.contracts import queues
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.messages import Heartbeat, Report

# A report is the only trace of finished work: keep trying for about ten minutes while the broker is away.
RETRY_POLICY = {"max_retries": 60, "interval_start": 0.2, "interval_step": 0.5, "interval_max": 10.0}
HEARTBEAT_RETRY = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.2}
HEARTBEAT_LIFETIME_SECONDS = 30


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
        body=jsonable(body),
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

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self._append({"kind": "heartbeat", "body": jsonable(heartbeat)})

    def _append(self, payload: dict[str, Any]) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(payload) + "\n")


class NullReporter:
    """Keeps nothing."""

    def send(self, report: Report) -> None:
        return None

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        return None
