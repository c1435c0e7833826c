"""Celery app of the control plane: JSON only, one queue per kind of work, ticks that never pile up."""

from celery import Celery
from celery.worker.control import control_command

from gpu_workers.contracts import consumer, queues
from gpu_workers.contracts.exporter import watch_celery
from gpu_workers.contracts.watchdog import watch_worker
from ratchet.env import load_env, use_settings

use_settings()

_TICK_SECONDS = 2.0
_REAP_SECONDS = 5.0
_RESEND_SECONDS = 60.0
_SEAL_SECONDS = 60.0
_ANCHOR_SECONDS = 60.0
_SWEEP_SECONDS = 600.0
_DAY_SECONDS = 86_400.0


def _tick(task: str, seconds: float) -> dict[str, object]:
    # A tick that waits longer than its period is dropped: the next one sees the same state.
    return {"task": task, "schedule": seconds, "options": {"queue": queues.CONTROL, "expires": seconds}}


app = Celery("ratchet")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(
    broker_url=app.conf.broker_url or load_env().celery_broker_url,
    accept_content=["json"],
    task_serializer="json",
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    worker_consumer=consumer.PATH,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    task_default_queue=queues.CONTROL,
    # What a killed control-plane worker held is sent again after a minute: its jobs are short and idempotent. They
    # are kept apart from the workers' unacknowledged messages, because any consumer restores all that its key holds,
    # and a trainer's job must not be sent again while it runs: leases in PostgreSQL decide on that.
    broker_transport_options={
        "visibility_timeout": 60,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "unacked_key": "unacked.control",
        "unacked_index_key": "unacked_index.control",
        "unacked_mutex_key": "unacked_mutex.control",
        "socket_keepalive": True,
    },
    task_routes={
        queues.JOB_INGEST: {"queue": queues.INGEST},
        queues.JOB_INGEST_POINTS: {"queue": queues.INGEST},
        queues.JOB_HEARTBEAT: {"queue": queues.HEARTBEAT},
        queues.JOB_ROLLOUT: {"queue": queues.ROLLOUT},
        queues.JOB_VERIFY: {"queue": queues.VERIFY},
        queues.JOB_PROBE: {"queue": queues.VERIFY},
        queues.JOB_MEASURE: {"queue": queues.VERIFY},
        queues.JOB_REPRODUCE: {"queue": queues.ROLLOUT},
        queues.JOB_TRAIN: {"queue": queues.TRAIN},
        queues.JOB_FLEET: {"queue": queues.FLEET},
    },
    beat_schedule={
        "advance runs": _tick("apps.runs.jobs.tick", _TICK_SECONDS),
        "reap leases": _tick("apps.runs.jobs.reap_leases", _REAP_SECONDS),
        "resend checks": _tick("apps.tasks.jobs.resend_checks", _RESEND_SECONDS),
        "resend reports": _tick("apps.tasks.jobs.resend_reports", _RESEND_SECONDS),
        "resend measurements": _tick("apps.tasks.jobs.resend_measurements", _RESEND_SECONDS),
        "anchor audit": _tick("apps.audit.jobs.anchor_chains", _ANCHOR_SECONDS),
        "sweep retention": _tick("apps.retention.jobs.sweep", _DAY_SECONDS),
        "seal metrics": _tick("apps.metrics.jobs.seal_idle", _SEAL_SECONDS),
        "send webhooks": _tick("apps.webhooks.jobs.tick", _REAP_SECONDS),
        "sweep webhooks": _tick("apps.webhooks.jobs.sweep", _SWEEP_SECONDS),
        "advance evaluations": _tick("apps.evaluations.jobs.tick", _TICK_SECONDS),
    },
)
app.autodiscover_tasks(related_name="jobs")


@control_command(name=queues.SIGNAL_GROUPS, args=[("signal", dict)])
def not_ours(state: object, signal: dict[str, object]) -> None:
    """What is broadcast to rollout workers reaches these workers too."""


watch_celery()
watch_worker()
