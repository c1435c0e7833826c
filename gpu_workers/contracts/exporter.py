"""Prometheus endpoint of a process that has no port of its own, and what its Celery worker does."""

import logging
import os
import time
from typing import Any

from celery.signals import beat_init, task_postrun, task_prerun, worker_ready
from prometheus_client import Counter, Histogram, start_http_server

VARIABLE = "RATCHET_EXPORTER"  # host:port to answer on; empty: there is no endpoint
_TRAINER_OFFSET, _TRAINER_PORTS = 100, 10  # trainers share their worker's address, as many as may run at once

JOBS = Counter("ratchet_jobs", "Celery jobs by name and how they ended", ["job", "state"])
JOB_SECONDS = Histogram(
    "ratchet_job_seconds", "Time of Celery jobs", ["job"], buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 3600)
)
STEPS = Counter("ratchet_trainer_steps", "Steps that this trainer has made durable")
STEP_SECONDS = Histogram(
    "ratchet_trainer_step_seconds",
    "From batch received to checkpoint durable",
    buckets=(0.5, 2, 5, 10, 30, 60, 300, 1800),
)
REQUESTS = Counter("ratchet_gateway_requests", "Requests of the gateway by route and status", ["route", "status"])

logger = logging.getLogger(__name__)
_started: dict[str, float] = {}


def serve(*, trainer: bool = False) -> str:
    """Answer at the address of RATCHET_EXPORTER; returns host:port, or nothing. A process works on without it."""
    host, _, text = os.environ.get(VARIABLE, "").rpartition(":")
    if not text.isdecimal():
        return ""
    ports = [int(text)]
    if trainer:
        ports = [int(text) + _TRAINER_OFFSET + number for number in range(_TRAINER_PORTS)]
    for port in ports:
        try:
            start_http_server(port, host or "127.0.0.1")
        except OSError as error:
            logger.info("no metrics at %s:%d: %s", host, port, error.strerror)
            continue
        return f"{host or '127.0.0.1'}:{port}"
    logger.warning("metrics cannot be read from this process: every port of %s is taken", VARIABLE)
    return ""


def watch_celery() -> None:
    """Count this process's jobs, and serve once its worker, or beat, is up."""
    worker_ready.connect(_serve, weak=False, dispatch_uid="ratchet.exporter")
    beat_init.connect(_serve, weak=False, dispatch_uid="ratchet.exporter")
    task_prerun.connect(_begin, weak=False, dispatch_uid="ratchet.exporter")
    task_postrun.connect(_end, weak=False, dispatch_uid="ratchet.exporter")


def _serve(**_: Any) -> None:
    serve()


def _begin(task_id: str = "", **_: Any) -> None:
    _started[task_id] = time.perf_counter()


def _end(task_id: str = "", task: Any = None, state: str | None = None, **_: Any) -> None:
    name = getattr(task, "name", "") or "unknown"
    JOBS.labels(name, state or "UNKNOWN").inc()
    if (started := _started.pop(task_id, None)) is not None:
        JOB_SECONDS.labels(name).observe(time.perf_counter() - started)
