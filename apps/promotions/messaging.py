"""Messages of promotions to their own jobs. Call from `transaction.on_commit`."""

from uuid import UUID

from gpu_workers.contracts import queues
from ratchet.celery import app

COMPUTE = "apps.promotions.jobs.compute"


def request_verdict(gate_id: UUID) -> None:
    app.send_task(COMPUTE, args=[str(gate_id)], queue=queues.CONTROL, expires=60)
