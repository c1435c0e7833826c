"""The workers' Celery application: queues, delivery rules and nothing of the control plane."""

import logging

from celery import Celery

from gpu_workers.contracts import consumer, queues
from gpu_workers.contracts.exporter import watch_celery
from gpu_workers.contracts.watchdog import watch_worker
from gpu_workers.settings import settings

ROUTES = {
    queues.JOB_ROLLOUT: {"queue": queues.ROLLOUT},
    queues.JOB_VERIFY: {"queue": queues.VERIFY},
    queues.JOB_PROBE: {"queue": queues.VERIFY},
    queues.JOB_MEASURE: {"queue": queues.VERIFY},
    queues.JOB_REPRODUCE: {"queue": queues.ROLLOUT},
    queues.JOB_TRAIN: {"queue": queues.TRAIN},
    queues.JOB_FLEET: {"queue": queues.FLEET},
    queues.JOB_INGEST: {"queue": queues.INGEST},
    queues.JOB_INGEST_POINTS: {"queue": queues.INGEST},
    queues.JOB_HEARTBEAT: {"queue": queues.HEARTBEAT},
}
# A message whose worker died is sent again by the reconciler at its deadline; the broker's own
# redelivery is only a late second net, and must not start a job twice while the first still runs.
VISIBILITY_TIMEOUT_SECONDS = 12 * 3600


def make_app(broker_url: str) -> Celery:
    """A Celery application that speaks JSON over `broker_url` and stores no results."""
    modules = ["gpu_workers.jobs", "gpu_workers.replay_jobs", "gpu_workers.measure_jobs"]
    app = Celery("gpu_workers", broker=broker_url, include=modules)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_routes=ROUTES,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_consumer=consumer.PATH,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": VISIBILITY_TIMEOUT_SECONDS},
        enable_utc=True,
        timezone="UTC",
    )
    return app


logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request would bury everything else
app = make_app(settings().broker_url)
watch_celery()
watch_worker()
