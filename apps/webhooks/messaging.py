"""Messages of webhooks to their own jobs. Call from `transaction.on_commit`."""

from uuid import UUID

from gpu_workers.contracts import queues
from ratchet.celery import app

DELIVER = "apps.webhooks.jobs.deliver"


def request_delivery(delivery_id: UUID) -> None:
    app.send_task(DELIVER, args=[str(delivery_id)], queue=queues.WEBHOOK)
