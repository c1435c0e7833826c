"""Messages of the control plane to workers and to itself. Call from `transaction.on_commit`."""

from typing import Any
from uuid import UUID

import msgspec
from kombu import Queue
from kombu.exceptions import ChannelError

from gpu_workers.contracts import queues
from gpu_workers.contracts.messages import BatchMessage, FleetJob, GroupSignal, RolloutJob, StopMessage, TrainJob
from gpu_workers.contracts.replays import ReproduceJob
from ratchet.celery import app

ADVANCE = "apps.runs.jobs.advance"
BUILD_DATASET = "apps.runs.jobs.build_dataset"


def send_rollout(job: RolloutJob) -> None:
    _send(queues.JOB_ROLLOUT, queues.ROLLOUT, job)


def send_reproduce(job: ReproduceJob) -> None:
    _send(queues.JOB_REPRODUCE, queues.ROLLOUT, job)


def send_train(job: TrainJob) -> None:
    _send(queues.JOB_TRAIN, queues.TRAIN, job)


def count_waiting_trainings() -> int | None:
    """Trainer jobs that no worker has taken yet. None: unknown, since other brokers than Redis let workers reserve."""
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return None
        try:
            return int(connection.default_channel.queue_declare(queues.TRAIN, passive=True).message_count)
        except ChannelError:  # Redis keeps no empty list
            return 0


def send_fleet(job: FleetJob) -> None:
    _send(queues.JOB_FLEET, queues.FLEET, job)


def send_batch(message: BatchMessage) -> None:
    put(queues.batch_queue(message.run_id, message.attempt), msgspec.to_builtins(message))


def send_stop(run_id: str, attempt: int, message: StopMessage) -> None:
    put(queues.batch_queue(run_id, attempt), msgspec.to_builtins(message))


def signal_groups(signal: GroupSignal) -> None:
    """Tell every rollout worker; one that does not hear it runs its groups to their end, which changes nothing."""
    app.control.broadcast(queues.SIGNAL_GROUPS, arguments={"signal": msgspec.to_builtins(signal)})


def request_advance(run_id: UUID | str, delay_seconds: float = 0.0) -> None:
    """Ask the control worker to advance a run."""
    app.send_task(ADVANCE, args=[str(run_id)], queue=queues.CONTROL, countdown=delay_seconds or None, expires=60)


def request_dataset(run_id: UUID | str) -> None:
    """Ask the control worker to write the run's supervised examples."""
    app.send_task(BUILD_DATASET, args=[str(run_id)], queue=queues.CONTROL)


def _send(name: str, queue: str, job: msgspec.Struct) -> None:
    app.send_task(name, args=[msgspec.to_builtins(job)], queue=queue)


def put(queue: str, payload: dict[str, Any]) -> None:
    """Put one JSON message on a trainer's own queue."""
    with app.producer_pool.acquire(block=True) as producer:
        producer.publish(
            payload,
            exchange="",
            routing_key=queue,
            declare=[Queue(queue, routing_key=queue, durable=True)],
            serializer="json",
            delivery_mode="persistent",
            retry=True,
            retry_policy={"max_retries": 3, "interval_start": 0.1, "interval_step": 0.2},
        )
